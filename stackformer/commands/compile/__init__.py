"""Compile the library for hardware that need not be there."""
