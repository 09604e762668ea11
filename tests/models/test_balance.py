"""The balance term: its formula, and that brackets are its minimum."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from stackformer import tasks
from stackformer.models import Aux, balance_loss
from stackformer.problems.dcf.config import DCFConfig
from stackformer.problems.dcf.strings import Strings


def by_hand(actions, mask, explore):
    wrong, counts, lengths, paid = [], [], [], []
    for a, real in zip(actions, mask, strict=True):
        push, pop = a[1:][real[1:], 0], a[1:][real[1:], 1]  # the bottom does not count
        v, n = push - pop, len(push)
        depth = np.cumsum(v)
        below = (np.minimum(depth, 0.0) ** 2).sum()
        uncertain = (push + pop - v**2).sum()
        wrong.append((depth[-1] ** 2 + below + (1 - explore) * uncertain) / n)
        counts.append((v**2).sum())
        lengths.append(n)
        paid.append((push + pop).mean())
    work = np.std(counts) / np.mean(lengths)
    return np.log(np.mean(wrong) + 1e-3) - np.log(work + 1e-6) + np.mean(paid)


@pytest.mark.parametrize("explore", [0.0, 0.4, 1.0])
def test_is_its_formula(explore):
    logits = jax.random.normal(jax.random.key(0), (3, 6, 3))
    mask = np.arange(6)[None] < np.array([[6], [5], [4]])
    loss = balance_loss(Aux(action_logits=(logits,)), mask=mask, explore=explore)
    expected = by_hand(np.asarray(jax.nn.softmax(logits)), mask, explore)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)


def test_needs_a_stack_with_three_actions():
    with pytest.raises(ValueError, match="`aux` should have the logits"):
        balance_loss(Aux(action_logits=(None,)))


@pytest.mark.parametrize("name", ["MA", "SE"])
def test_finds_the_brackets_of_strings_without_answers(name):
    """An action head on symbols, every seed: `--balance_steps` without a model."""
    task = tasks.get(name)
    config = DCFConfig(task=name, steps=1, batch_size=1, learning_rate=1e-3)
    steps, seeds = 1_000, 4

    def logits_of(head, symbols):
        return symbols @ head["kernel"] + head["bias"].reshape(1, 3)

    def loss(head, symbols, strings, step):
        aux = Aux(action_logits=(logits_of(head, symbols)[strings.tokens],))
        return strings.balance(aux, step / steps)

    def learn(key):
        keys = jax.random.split(key)
        symbols = 0.16 * jax.random.normal(keys[0], (task.vocab_size, 64))
        kernel = jax.random.uniform(keys[1], (64, 3), minval=-0.125, maxval=0.125)
        head = {"kernel": kernel, "bias": jnp.zeros(3)}
        optimizer = optax.adam(1e-2)

        def one(carry, step):
            head, state = carry
            strings = Strings.draw(task, config, jax.random.fold_in(key, step))
            grads = jax.grad(loss)(head, symbols, strings, step)
            updates, state = optimizer.update(grads, state)
            return (optax.apply_updates(head, updates), state), None

        start = (head, optimizer.init(head))
        (head, _), _ = jax.lax.scan(one, start, jnp.arange(steps))
        return jax.nn.softmax(logits_of(head, symbols))

    found = jax.jit(jax.vmap(learn))(jax.random.split(jax.random.key(0), seeds))
    symbols = [*task.input_symbols, "<sep>"]
    ids = [*task.input_tokens, tasks.SEP]
    wanted = [{"(": 0, ")": 1}.get(symbol, 2) for symbol in symbols]
    probabilities = np.asarray(found)[:, ids, wanted]
    assert probabilities.min() > 0.9, dict(zip(symbols, probabilities.T, strict=True))
