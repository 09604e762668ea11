"""The command line: `stackformer NAME` and `python -m experiments.NAME`."""
