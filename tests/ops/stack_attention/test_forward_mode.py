"""Derivatives forward and of second order, through every form."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kernel_checks import every_form, random_inputs

from stackformer import stack_attention, stack_attention_weights
from stackformer.ops.stack_attention.forms import FORMS


def loss(form, logits, values):
    top = stack_attention(jax.nn.softmax(logits), values, **form)
    return jnp.sum(jnp.sin(3.0 * top))


def difference(function, point, direction, step=1e-4):
    """A central difference, in float64."""
    points = [
        jax.tree.map(lambda x, d, s=s: x + s * step * d, point, direction)
        for s in (1, -1)
    ]
    up, down = (function(*p) for p in points)
    return jax.tree.map(lambda u, d: (u - d) / (2.0 * step), up, down)


@every_form
def test_hessian_vector_products(form):
    with jax.enable_x64(True):
        point = random_inputs(7, features=2, dtype=jnp.float64)
        direction = random_inputs(7, features=2, dtype=jnp.float64, seed=1)
        gradient = jax.jit(jax.grad(functools.partial(loss, form), (0, 1)))
        _, product = jax.jit(lambda p, d: jax.jvp(gradient, p, d))(point, direction)
        expected = difference(gradient, point, direction)
        for got, wanted in zip(product, expected, strict=True):
            np.testing.assert_allclose(got, wanted, atol=1e-5)


@every_form
def test_forward_mode_or_the_form_that_has_it(form):
    point, direction = (
        random_inputs(7, features=2),
        random_inputs(7, features=2, seed=1),
    )
    function = functools.partial(loss, form)
    if not FORMS[form["implementation"]].forward_mode:
        with pytest.raises(TypeError, match="forward-mode"):
            jax.jvp(function, point, direction)
        for attend in (stack_attention, stack_attention_weights):
            assert 'implementation="recurrent"' in (attend.__doc__ or "")
        return
    gradient = jax.jit(jax.grad(function, (0, 1)))(*point)
    expected = sum(jnp.vdot(g, d) for g, d in zip(gradient, direction, strict=True))
    _, tangent = jax.jit(lambda p, d: jax.jvp(function, p, d))(point, direction)
    np.testing.assert_allclose(tangent, expected, rtol=1e-4)
    _, linear = jax.linearize(function, *point)
    np.testing.assert_allclose(linear(*direction), expected, rtol=1e-4)
    forward = jax.jit(jax.jacfwd(function, (0, 1)))(*point)
    for got, wanted in zip(forward, gradient, strict=True):
        np.testing.assert_allclose(got, wanted, atol=1e-4)
    # alpha's own derivative, against that of the loss through alpha @ values.
    logits, values = point

    def tops(logits):
        alpha = stack_attention_weights(jax.nn.softmax(logits), **form)
        return jnp.sum(jnp.sin(3.0 * (alpha @ values)))

    _, tangent = jax.jit(lambda p, d: jax.jvp(tops, (p,), (d,)))(logits, direction[0])
    np.testing.assert_allclose(tangent, jnp.vdot(gradient[0], direction[0]), rtol=1e-4)
