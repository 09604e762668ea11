"""The door of the distribution `stackformer-jax`, whose import name is `stackformer`.

An unrelated PyTorch package on the index is called `stackformer` too, and both lie in
the same folder. This module looks before it imports, and says what has happened.
"""

import importlib.util
import pathlib
import sys

STORY = (
    "this `stackformer` is another package of the same name (PyTorch, from `pip "
    "install stackformer`), installed over the one in JAX; to get it back: "
    "pip uninstall stackformer stackformer-jax, then pip install stackformer-jax, or "
    "pip install -e . in a clone"
)


def is_ours() -> bool:
    """Whether `import stackformer` gives the package of this distribution."""
    spec = importlib.util.find_spec("stackformer")
    if spec is None or spec.origin is None:
        return False
    text = pathlib.Path(spec.origin).read_text(encoding="utf-8", errors="replace")
    return "Differentiable stacks in transformers, in JAX" in text


def main() -> None:
    """The console command `stackformer`."""
    if not is_ours():
        sys.exit(f"error: {STORY}")
    from stackformer.commands.main import main as command

    command()
