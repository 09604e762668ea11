"""Parts of `python -m experiments.benchmark`."""
