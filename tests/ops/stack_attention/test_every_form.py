"""What every form in the registry must pass; a new form is tested by being there."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kernel_checks import (
    check_against,
    check_implementation,
    equations,
    every_form,
    fast_forms,
    forms_that_take,
    golden,
    random_inputs,
    run,
    value_and_gradients,
    weights,
)

from stackformer import stack_attention, stack_attention_weights
from stackformer.ops.stack_attention import forms
from stackformer.ops.stack_attention.form import Form, Options
from stackformer.ops.stack_attention.forms import FORMS

REFERENCE = (("implementation", "reference"),)


@fast_forms
@pytest.mark.parametrize("length", [1, 2, 3, 19])
def test_equals_the_reference(form, length):
    check_implementation(length, (2,), **form)


@fast_forms
@pytest.mark.parametrize("length", [63, 200])
def test_equals_the_golden_file(form, length):
    check_against(*golden(length), **form)


@fast_forms
def test_weights_equal_the_reference_and_rows_sum_to_one(form):
    actions = jax.nn.softmax(random_inputs(14, (2,))[0])
    alpha = weights(actions, **form)
    expected = weights(actions, implementation="reference")
    np.testing.assert_allclose(alpha, expected, atol=1e-6)
    np.testing.assert_allclose(alpha.sum(-1), 1.0, atol=1e-6)


@functools.partial(jax.jit, static_argnums=0)
@functools.partial(jax.grad, argnums=(1, 2), has_aux=True)
def _raw_gradient(options, actions, values):
    top = stack_attention(actions, values, **dict(options))
    return jnp.sin(3.0 * top.astype(jnp.float32)).sum(), top


def raw_gradient(form, actions, values):
    """The gradients at the probabilities, not the logits, and at the values; tops."""
    return _raw_gradient(tuple(form.items()), actions, values)


@fast_forms
def test_probabilities_are_used_as_they_are(form):
    logits, values = random_inputs(13)
    actions = 0.9 * jax.nn.softmax(logits)
    got, expected = (raw_gradient(f, actions, values) for f in (form, dict(REFERENCE)))
    chex.assert_trees_all_close(got, expected, atol=1e-5)


@every_form
def test_actions_of_the_bottom_are_ignored(form):
    logits, values = random_inputs(9)
    other = logits.at[0].set(jnp.array([7.0, -3.0, 1.0]))
    (gradient, _), top = raw_gradient(form, jax.nn.softmax(logits), values)
    np.testing.assert_array_equal(gradient[0], 0.0)
    np.testing.assert_array_equal(
        top, raw_gradient(form, jax.nn.softmax(other), values)[1]
    )


@fast_forms
def test_bfloat16_differs_by_one_rounding(form):
    # Both accumulate in float32 and round the result to 8 bits: 2**-7, relative.
    logits, values = random_inputs(12, (2,))
    inputs = [x.astype(jnp.bfloat16) for x in (jax.nn.softmax(logits), values)]
    got, expected = (raw_gradient(f, *inputs) for f in (form, dict(REFERENCE)))
    chex.assert_trees_all_equal_shapes_and_dtypes(got, expected)
    assert all(leaf.dtype == jnp.bfloat16 for leaf in jax.tree.leaves(got))
    for found, wanted in zip(*map(jax.tree.leaves, (got, expected)), strict=True):
        found, wanted = (np.asarray(x, np.float32) for x in (found, wanted))
        scale = max(1.0, np.abs(wanted).max())
        np.testing.assert_allclose(found, wanted, rtol=0, atol=2**-7 * scale)


@every_form
def test_causal_to_the_last_bit(form):
    logits, values = random_inputs(12)
    actions = jax.nn.softmax(logits)

    def tops(values):
        return stack_attention(actions, values, **form).sum(-1)

    jacobian = jax.jit(jax.jacrev(tops))(values).sum(-1)
    np.testing.assert_array_equal(jacobian[np.triu_indices(12, 1)], 0.0)


@every_form
def test_vmap_of_grad_and_free_leading_axes(form):
    logits, values = random_inputs(6, (2, 3))
    options = tuple(form.items())
    together = value_and_gradients(logits, values, options)
    apart = jax.jit(jax.vmap(jax.vmap(functools.partial(run, options=options))))
    chex.assert_trees_all_close(together, apart(logits, values), atol=1e-5)


@every_form
def test_second_call_compiles_nothing(form):
    logits, values = random_inputs(5, (2,))
    traces = []

    @jax.jit
    def attend(logits, values):
        traces.append(1)
        return run(logits, values, tuple(form.items()))

    attend(logits, values)
    attend(logits + 1.0, values * 2.0)
    assert len(traces) == 1


# A program of the reference grows with T: it is unrolled by Python.
@fast_forms
def test_the_program_does_not_grow_with_length(form):
    """Compile time follows the number of equations. T within one row of the table."""

    def count(length):
        function = functools.partial(run, options=tuple(form.items()))
        shapes = [jax.ShapeDtypeStruct((3, length, n), jnp.float32) for n in (3, 7)]
        return equations(function, *shapes)

    # The chunkwise form has a few phases more until the stack fills all of them.
    assert count(390) == count(398) <= 1.05 * count(250)


@every_form
def test_the_registry_adds_no_equation(form):
    """What the public function traces is what the form's own function traces."""
    options = dict(form)
    entry = FORMS[options.pop("implementation")]
    actions, values = random_inputs(9, (2,))
    chosen = forms.choose(9, 5, **form).options
    through = equations(functools.partial(stack_attention, **form), actions, values)
    if entry.attend_to is not None:
        direct = functools.partial(entry.attend_to, options=chosen)
        assert equations(direct, actions, values) == through
    else:
        direct = functools.partial(entry.weights_of, options=chosen)
        assert equations(direct, actions) + 1 == through  # alpha @ values


@pytest.mark.parametrize("name", forms_that_take(max_depth=5))
def test_bounded_forms_agree(name):
    logits, values = random_inputs(23, (2,))
    steps = (("implementation", "recurrent"), ("max_depth", 5))
    expected = value_and_gradients(logits, values, steps)
    check_against(expected, logits, values, implementation=name, max_depth=5)


@pytest.mark.parametrize("name", forms_that_take(max_pops=3))
def test_forms_with_several_pops_agree(name):
    logits, values = random_inputs(11, (2,), actions=5)
    expected = value_and_gradients(logits, values, (*REFERENCE, ("max_pops", 3)))
    check_against(expected, logits, values, implementation=name, max_pops=3)


@every_form
def test_what_a_form_refuses_is_an_error(form):
    asked = {"chunk_size": 8, "max_depth": 3, "max_pops": 2}
    name = form["implementation"]
    for option, value in asked.items():
        actions = jnp.full((9, 4 if option == "max_pops" else 3), 0.25)
        attend = functools.partial(
            stack_attention_weights, implementation=name, **{option: value}
        )
        if FORMS[name].refuses(9, Options(**{option: value})) is None:
            assert jax.eval_shape(attend, actions).shape == (9, 9)
        else:
            with pytest.raises(ValueError, match=f"`{option}` should be .*{name!r}"):
                attend(actions)


def test_a_new_form_is_one_entry(monkeypatch):
    def cumulative(actions, options, starts=None):
        """A form that knows one answer: nothing is ever popped."""
        del options, starts
        length = actions.shape[-2]
        return jnp.broadcast_to(jnp.eye(length), (*actions.shape[:-1], length))

    def refuses(length, options):
        del length
        return options.unsupported("chunk_size", "max_depth", "max_pops")

    new = Form(refuses=refuses, weights_of=cumulative)
    monkeypatch.setitem(FORMS, "pushes", new)
    pushes = jax.nn.one_hot(jnp.zeros(5, int), 3)
    values = jnp.arange(5.0)[:, None]
    for implementation in ("pushes", "scan"):
        alpha = stack_attention_weights(pushes, implementation=implementation)
        np.testing.assert_array_equal(alpha, jnp.eye(5))
        top = stack_attention(pushes, values, implementation=implementation)
        np.testing.assert_array_equal(top, values)
    with pytest.raises(ValueError, match="with implementation='pushes'; use"):
        stack_attention_weights(pushes, implementation="pushes", max_depth=2)
    monkeypatch.setattr(forms, "_CPU", (forms.Row(None, "pushes"),))
    assert forms.choose(9, 4, backend="cpu").implementation == "pushes"
