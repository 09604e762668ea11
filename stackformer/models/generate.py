"""Generation: prompts are read at once, answers written one symbol after another."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.core import Tracer

from stackformer.checks import check_count


def generate(
    model: nnx.Module,
    prompts: jax.Array | np.ndarray,
    prompt_lengths: jax.Array | np.ndarray,
    num_new: int,
    *,
    output_tokens: jax.Array | np.ndarray | None = None,
    key: jax.Array | None = None,
    temperature: float = 0.0,
    hard: bool = False,
    needed: jax.Array | int | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Continues every prompt by `num_new` symbols.

    One pass reads the prompts as far as the shortest of them goes. Then comes a loop of
    decoding steps: a row that still has a prompt reads it, another reads what it wrote.
    The model remembers keys and values and its stacks. (The loop ends with the longest
    prompt's answer, so that it has no gradient in reverse mode.)

    Args:
      model: a causal model with `init_cache` and `decode_step`, and `prefill` to read
        prompts at once; without it they are read step by step.
      prompts: token ids, shape (B, P), BOS first, padded at the right end.
      prompt_lengths: how many tokens of each row are real, shape (B,), from 1 to P.
      num_new: how many symbols to write.
      output_tokens: token id of each output class, shape (O,); None where classes are
        token ids.
      key: random key, for a temperature above 0.
      temperature: 0 writes the most probable symbol, 1 samples from the model.
      hard: stacks take their most probable action: plain stacks of positions.
      needed: how many of the `num_new` symbols are wanted, at least 1, a number that
        may be traced: the others are zeros, and take no time. None is all.

    Returns:
      The classes written, shape (B, num_new), and the logits they were chosen from,
      shape (B, num_new, O).

    Example:
      >>> from stackformer.models import StackTransformer, TransformerConfig
      >>> config = TransformerConfig(
      ...     vocab_size=6, output_size=6, num_layers=1, causal=True)
      >>> model = StackTransformer(config, rngs=nnx.Rngs(0))
      >>> prompts = jnp.array([[1, 4, 5, 3], [1, 4, 3, 0]])
      >>> classes, logits = generate(model, prompts, jnp.array([4, 3]), 5)
      >>> classes.shape, logits.shape
      ((2, 5), (2, 5, 6))
    """
    _check(model, prompts, prompt_lengths, num_new, key, temperature)
    graph, state = nnx.split(model)
    if output_tokens is not None:
        output_tokens = jnp.asarray(output_tokens)
    if temperature == 0.0:
        key = None
    # The temperature is traced: one program serves all that are above zero.
    return _generate(
        graph,
        state,
        prompts,
        prompt_lengths,
        output_tokens,
        key,
        jnp.float32(temperature or 1.0),
        num_new if needed is None else needed,
        num_new=num_new,
        hard=hard,
    )


@functools.partial(jax.jit, static_argnames=("graph", "num_new", "hard"))
def _generate(
    graph,
    state,
    prompts,
    prompt_lengths,
    output_tokens,
    key,
    temperature,
    needed,
    *,
    num_new,
    hard,
):
    model = nnx.merge(graph, state)
    batch, width = prompts.shape
    length = width + num_new - 1
    padded = jnp.pad(prompts, ((0, 0), (0, num_new - 1)))

    def write(t, logits):
        """The symbols after position t: classes, and the tokens that stand for them."""
        if key is not None:
            step_key = jax.random.fold_in(key, t)
            classes = jax.random.categorical(step_key, logits / temperature)
        else:
            classes = jnp.argmax(logits, axis=-1)
        classes = classes.astype(jnp.int32)
        tokens = classes if output_tokens is None else output_tokens[classes]
        return classes, tokens.astype(prompts.dtype)

    def step(t, carry):
        cache, written, classes, logits = carry
        tokens = jnp.where(t < prompt_lengths, padded[:, t], written)
        cache, logits_t = model.decode_step(cache, tokens)
        classes_t, written = write(t, logits_t)
        return cache, written, classes.at[t].set(classes_t), logits.at[t].set(logits_t)

    cache = model.init_cache(batch, length, hard=hard)
    if hasattr(model, "prefill"):
        start = jnp.min(prompt_lengths).astype(jnp.int32)
        cache, logits_t = model.prefill(cache, prompts, start)
    else:
        start = jnp.int32(1)
        cache, logits_t = model.decode_step(cache, prompts[:, 0])
    classes_t, written = write(start - 1, logits_t)
    classes = jnp.zeros((length, batch), jnp.int32).at[start - 1].set(classes_t)
    logits = jnp.zeros((length, *logits_t.shape), logits_t.dtype)
    logits = logits.at[start - 1].set(logits_t)
    stop = jnp.max(prompt_lengths).astype(jnp.int32) + needed - 1
    _, _, classes, logits = jax.lax.fori_loop(
        start, stop, step, (cache, written, classes, logits)
    )
    # The answer to the last token of a prompt is the first symbol written.
    at = prompt_lengths[None, :] - 1 + jnp.arange(num_new)[:, None]
    classes = jnp.take_along_axis(classes, at, axis=0)
    logits = jnp.take_along_axis(logits, at[..., None], axis=0)
    return classes.T, logits.swapaxes(0, 1)


def _check(model, prompts, prompt_lengths, num_new, key, temperature):
    if not hasattr(model, "decode_step"):
        raise ValueError(
            "`model` should have init_cache and decode_step, as autoregressive "
            f"transformers do, but got a {type(model).__name__}, which has not."
        )
    if prompts.ndim != 2 or not jnp.issubdtype(prompts.dtype, jnp.integer):
        raise ValueError(
            "`prompts` should be integers of shape (B, P), but got "
            f"{prompts.dtype} of shape {prompts.shape}."
        )
    if prompt_lengths.shape != prompts.shape[:1]:
        raise ValueError(
            f"`prompt_lengths` shape should be {prompts.shape[:1]}, but got "
            f"{prompt_lengths.shape}."
        )
    if not jnp.issubdtype(prompt_lengths.dtype, jnp.integer):
        raise ValueError(
            f"`prompt_lengths` should be integers, but got {prompt_lengths.dtype}."
        )
    if not isinstance(prompt_lengths, Tracer):
        low, high = int(prompt_lengths.min()), int(prompt_lengths.max())
        if low < 1 or high > prompts.shape[1]:
            raise ValueError(
                f"`prompt_lengths` should lie from 1 to {prompts.shape[1]}, but got "
                f"values from {low} to {high}."
            )
    check_count("num_new", num_new)
    if temperature < 0.0:
        raise ValueError(f"`temperature` should be at least 0, but got {temperature}.")
    if temperature > 0.0 and key is None:
        raise ValueError(
            f"`key` should be given with temperature={temperature}, but got None."
        )
