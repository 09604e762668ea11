"""Optional dependencies: imported when first needed, with a clear error if missing."""

import importlib
import types

_EXTRA_OF = {"safetensors": "lm", "tokenizers": "lm"}


class MissingExtra(ImportError):
    """An optional package is not installed; the message says how to get it."""


def require(module: str) -> types.ModuleType:
    """Imports a module of an optional extra.

    Raises:
      MissingExtra: it is not installed; the message has the command that installs it.

    Example:
      >>> require("tokenizers").__name__
      'tokenizers'
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        extra = _EXTRA_OF[package]
        raise MissingExtra(
            f"{package} is not installed, and this part needs it: "
            f"pip install 'stackformer-jax[{extra}]', or in a clone "
            f"pip install -e '.[{extra}]'"
        ) from error
