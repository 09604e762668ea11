"""What every implementation of stack attention must pass; a new form reuses it."""

import functools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stackformer import stack_attention, stack_attention_weights
from stackformer.ops.stack_attention.form import Options
from stackformer.ops.stack_attention.forms import FORMS

GOLDEN = pathlib.Path(__file__).parents[2] / "golden" / "stack_attention_reference.npz"
GOLDEN_LENGTHS = (1, 5, 63, 64, 65, 200, 513)


def forms_that_take(length=65, **options):
    """The names of all forms in the registry that do not refuse these options."""
    asked = Options(**options)
    return [name for name, form in FORMS.items() if form.refuses(length, asked) is None]


def _cases(names):
    """Each form, cut into short chunks where it takes a chunk size."""
    chunked = forms_that_take(chunk_size=4)
    cases = [
        {"implementation": n} | ({"chunk_size": 4} if n in chunked else {})
        for n in names
    ]
    return pytest.mark.parametrize("form", cases, ids=names)


every_form = _cases(list(FORMS))
packing_forms = _cases(forms_that_take(segment_ids=True))
# The reference is the specification: compared with itself it proves nothing.
fast_forms = _cases([name for name in FORMS if name != "reference"])


def random_inputs(length, batch=(), features=5, dtype=jnp.float32, seed=0, actions=3):
    """Action logits and values."""
    keys = jax.random.split(jax.random.key(seed), 2)
    logits = 2.0 * jax.random.normal(keys[0], (*batch, length, actions), dtype)
    values = jax.random.normal(keys[1], (*batch, length, features), dtype)
    return logits, values


@functools.partial(jax.jit, static_argnames="options")
def value_and_gradients(logits, values, options):
    """Tops, and the gradients of a loss at the action logits and the values.

    Args:
      logits: shape (..., T, A).
      values: shape (..., T, D).
      options: keyword arguments of `stack_attention`, as a tuple of pairs.
    """
    return run(logits, values, options)


def run(logits, values, options):
    def loss(logits, values):
        actions = jax.nn.softmax(logits, axis=-1)
        top = stack_attention(actions, values, **dict(options))
        return jnp.sin(3.0 * top.astype(jnp.float32)).sum() / 3.0, top

    gradient = jax.grad(loss, argnums=(0, 1), has_aux=True)
    (d_logits, d_values), top = gradient(logits, values)
    return {"top": top, "d_logits": d_logits, "d_values": d_values}


def check_against(expected, logits, values, tolerance=1e-5, **options):
    """Asserts that a form's tops and gradients equal `expected`.

    The tolerance is absolute where an array stays below one, else relative to its
    largest entry.
    """
    got = value_and_gradients(logits, values, tuple(options.items()))
    for name, array in expected.items():
        found, wanted = (np.asarray(x, np.float64) for x in (got[name], array))
        assert found.shape == wanted.shape, name
        scale = max(1.0, np.abs(wanted).max(initial=0.0))
        np.testing.assert_allclose(
            found, wanted, rtol=0, atol=tolerance * scale, err_msg=name
        )


def check_implementation(length, batch=(), **options):
    """Asserts that a form equals the reference in its tops and its gradients."""
    logits, values = random_inputs(length, batch)
    expected = value_and_gradients(logits, values, (("implementation", "reference"),))
    check_against(expected, logits, values, **options)


def equations(function, *arguments):
    """How many equations the jaxpr has, those of inner jaxprs too."""
    return _count(jax.make_jaxpr(function)(*arguments).jaxpr)


def _count(jaxpr):
    total = 0
    for equation in jaxpr.eqns:
        total += 1
        for parameter in jax.tree.leaves(
            list(equation.params.values()), is_leaf=_is_jaxpr
        ):
            if _is_jaxpr(parameter):
                total += _count(getattr(parameter, "jaxpr", parameter))
    return total


def _is_jaxpr(value):
    return hasattr(getattr(value, "jaxpr", value), "eqns")


def golden(length):
    """(expected, logits, values) of the reference, computed in float64."""
    with np.load(GOLDEN) as arrays:
        of_length = {
            name.split("/")[1]: arrays[name]
            for name in arrays.files
            if name.startswith(f"{length}/")
        }
    logits, values = of_length.pop("logits"), of_length.pop("values")
    return of_length, jnp.asarray(logits), jnp.asarray(values)


def compute_golden(length):
    """The same from scratch: minutes at the longest length."""
    logits, values = random_inputs(length, (2,) if length < 100 else (1,), features=4)
    with jax.enable_x64(True):
        wide = [jnp.asarray(np.asarray(x), jnp.float64) for x in (logits, values)]
        expected = run(*wide, (("implementation", "reference"),))
    return expected, logits, values


def tops_of_a_python_list(string, max_depth=None):
    """The position on top of a real stack after each step; 0 where it is empty.

    An action is "push", "noop" or a number of pops. A stack of bounded depth forgets
    its lowest elements: position 0 stands in their place.
    """
    stack, tops = [], [0]
    for i, action in enumerate(string[1:], start=1):
        if action == "push":
            stack.append(i)
            if max_depth is not None and len(stack) > max_depth:
                stack[-max_depth - 1] = 0
        elif action != "noop":
            del stack[max(len(stack) - action, 0) :]
        tops.append(stack[-1] if stack else 0)
    return tops


def one_hot_actions(string, max_pops=1):
    """Hard action probabilities of such a string, shape (T, 2 + max_pops)."""
    index = {"push": 0, 1: 1, "noop": 2} | {k: k + 1 for k in range(2, max_pops + 1)}
    return jax.nn.one_hot(jnp.array([index[a] for a in string]), max_pops + 2)


@functools.partial(jax.jit, static_argnames="options")
def _weights(actions, options):
    return stack_attention_weights(actions, **dict(options))


def weights(actions, **options):
    """alpha as a NumPy array."""
    return np.asarray(_weights(actions, tuple(options.items())))


# python tests/ops/stack_attention/kernel_checks.py writes the golden file.
if __name__ == "__main__":
    arrays = {}
    for length in GOLDEN_LENGTHS:
        expected, logits, values = compute_golden(length)
        arrays |= {f"{length}/{name}": x for name, x in expected.items()}
        arrays |= {f"{length}/logits": logits, f"{length}/values": values}
    GOLDEN.parent.mkdir(exist_ok=True)
    np.savez_compressed(GOLDEN, **{k: np.asarray(v) for k, v in arrays.items()})
