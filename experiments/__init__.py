"""Thin mains: `python -m experiments.NAME`."""
