"""Settings shared by all tests."""

import jax

# An accidental (3,) + (5, 3) broadcast is a bug until somebody writes it down.
jax.config.update("jax_numpy_rank_promotion", "raise")
