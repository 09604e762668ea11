"""Certain actions by a stack of positions: equal values, the kernel's gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stackformer.ops import stack_attention
from stackformer.ops.stack_attention.certain import attend_certain


def strings(actions=3, dtype=jnp.float32):
    keys = jax.random.split(jax.random.key(0), 2)
    chosen = jax.random.randint(keys[0], (2, 3, 17), 0, actions)
    values = jax.random.normal(keys[1], (2, 3, 17, 5), dtype)
    return jax.nn.one_hot(chosen, actions), values


@pytest.mark.parametrize(
    "options", [{}, {"max_depth": 2}, {"max_pops": 3}], ids=["", "depth", "pops"]
)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_value_and_gradients(options, dtype):
    actions, values = strings(options.get("max_pops", 1) + 2, dtype)

    def run(attend):
        def loss(actions, values):
            top = attend(actions, values, **options).astype(jnp.float32)
            return jnp.sin(3.0 * top).sum(), top

        return jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))(actions, values)

    def certain(*arrays, **options):
        return attend_certain(True, *arrays, **options)

    got = jax.jit(lambda *arrays: certain(*arrays, **options))(actions, values)
    assert got.dtype == dtype
    (_, top), gradients = run(stack_attention)
    np.testing.assert_allclose(got.astype(jnp.float32), top, atol=1e-6)
    for x, y in zip(run(certain)[1], gradients, strict=True):
        np.testing.assert_array_equal(x, y)


def test_the_value_needs_no_move_of_values():
    actions, values = strings()
    program = jax.make_jaxpr(lambda *x: attend_certain(True, *x))(actions, values)
    hard = program.jaxpr
    (call,) = [e for e in hard.eqns if "custom_vjp" in e.primitive.name]
    inner = call.params["call_jaxpr"].jaxpr
    (cond,) = [e for e in inner.eqns if e.primitive.name == "cond"]
    _, certain = cond.params["branches"]
    (scan,) = [e for e in certain.jaxpr.eqns if e.primitive.name == "scan"]
    carried = scan.params["jaxpr"].in_avals
    assert all(x.dtype == jnp.int32 for x in carried if x.size), carried


def test_traced_and_mapped():
    actions, values = strings()
    soft = 0.8 * actions + 0.1

    def run(certain):
        used = jnp.where(certain, actions, soft)
        return attend_certain(certain, used, values)

    got = jax.jit(jax.vmap(run))(jnp.array([True, False]))
    np.testing.assert_allclose(got[0], stack_attention(actions, values), atol=1e-6)
    np.testing.assert_allclose(got[1], stack_attention(soft, values), atol=1e-6)
