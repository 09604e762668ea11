"""The scan over a history against the same steps unrolled by autodiff."""

import jax
import jax.numpy as jnp
import numpy as np

from stackformer.ops.history_scan import history_scan

LEADING, VECTORS, FEATURES, STEPS = 2, 2, 3, 5


def step(params, carry, last, index, x):
    carry = jnp.tanh(carry + x + last.mean(axis=(1, 2)))
    base = jnp.sin(params["base"] * last) + carry[:, None, None]
    earlier = jnp.arange(STEPS + 1) < index
    mix = params["mix"][None] * carry[:, None, None, None] ** 2
    mix = jnp.where(earlier[None, :, None, None], mix, 0.0)
    return carry, base, mix, (carry, last[:, 0])


def unrolled(params, carry, first, xs):
    history, ys = [first], []
    for index in range(1, STEPS + 1):
        carry, row, mix, y = step(params, carry, history[-1], index, xs[index - 1])
        for m, earlier in enumerate(history):
            row = row + mix[:, m].swapaxes(1, 2) @ earlier
        history.append(row)
        ys.append(y)
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *ys)


def test_values_and_all_gradients_equal_the_unrolled_loop():
    keys = jax.random.split(jax.random.key(0), 6)
    params = {
        "base": jax.random.normal(keys[0], (1, VECTORS, FEATURES)),
        "mix": jax.random.normal(keys[1], (STEPS + 1, VECTORS, VECTORS)),
    }
    arguments = (
        params,
        jax.random.normal(keys[2], (LEADING,)),
        jax.random.normal(keys[3], (LEADING, VECTORS, FEATURES)),
        jax.random.normal(keys[4], (STEPS, LEADING)),
    )
    weight = jax.random.normal(keys[5], (STEPS, LEADING, FEATURES))

    def total(run):
        def loss(*arguments):
            small, wide = run(*arguments)
            return jnp.sum(small**2) + jnp.sum(weight * wide)

        return jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2, 3)))

    got = total(lambda *arguments: history_scan(step, *arguments))(*arguments)
    expected = total(unrolled)(*arguments)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
        got,
        expected,
    )


def test_backward_memory_is_not_one_history_for_each_step():
    vectors, features, steps = 2, 50, 100

    def long_step(params, carry, last, index, x):
        mix = jnp.zeros((1, steps + 1, vectors, vectors))
        return carry, params * last, mix, last.sum() + x

    def loss(params):
        first = jnp.ones((1, vectors, features))
        return history_scan(long_step, params, (), first, jnp.zeros(steps)).sum()

    compiled = jax.jit(jax.grad(loss)).lower(jnp.float32(0.5)).compile()
    history = (steps + 1) * vectors * features * 4
    assert compiled.memory_analysis().temp_size_in_bytes < 12 * history
