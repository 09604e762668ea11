"""Generation: prompts and answers go through one `lax.scan` of decoding steps."""

import functools

import jax
import jax.numpy as jnp
from flax import nnx


def generate(
    model: nnx.Module,
    prompts: jax.Array,
    prompt_lengths: jax.Array,
    num_new: int,
    *,
    output_tokens: jax.Array | None = None,
    key: jax.Array | None = None,
    temperature: float = 0.0,
) -> tuple[jax.Array, jax.Array]:
    """Continues every prompt by `num_new` symbols.

    One compiled scan reads the prompts and writes the answers, whatever the lengths of
    the prompts: a row that still has a prompt reads it, another reads what it wrote.
    The model remembers keys and values (`init_cache`, `decode_step`) and its stacks.

    Args:
      model: a causal model with `init_cache` and `decode_step`.
      prompts: token ids, shape (B, P), BOS first, padded at the right end.
      prompt_lengths: how many tokens of each row are real, shape (B,), from 1 to P.
      num_new: how many symbols to write.
      output_tokens: token id of each output class, shape (O,); None where classes are
        token ids.
      key: random key, for a temperature above 0.
      temperature: 0 writes the most probable symbol, 1 samples from the model.

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
    return _generate(
        graph, state, prompts, prompt_lengths, output_tokens, key, temperature, num_new
    )


@functools.partial(jax.jit, static_argnames=("graph", "temperature", "num_new"))
def _generate(
    graph, state, prompts, prompt_lengths, output_tokens, key, temperature, num_new
):
    model = nnx.merge(graph, state)
    batch, width = prompts.shape
    length = width + num_new - 1
    padded = jnp.pad(prompts, ((0, 0), (0, num_new - 1)))

    def step(carry, inputs):
        cache, written = carry
        t, given = inputs
        tokens = jnp.where(t < prompt_lengths, given, written)
        cache, logits = model.decode_step(cache, tokens)
        if temperature > 0.0:
            step_key = jax.random.fold_in(key, t)
            classes = jax.random.categorical(step_key, logits / temperature)
        else:
            classes = jnp.argmax(logits, axis=-1)
        classes = classes.astype(jnp.int32)
        written = classes if output_tokens is None else output_tokens[classes]
        return (cache, written.astype(prompts.dtype)), (classes, logits)

    start = (model.init_cache(batch, length), jnp.zeros(batch, prompts.dtype))
    _, (classes, logits) = jax.lax.scan(step, start, (jnp.arange(length), padded.T))
    # The answer to the last token of a prompt is the first symbol written.
    at = prompt_lengths[None, :] - 1 + jnp.arange(num_new)[:, None]
    classes = jnp.take_along_axis(classes, at, axis=0)
    logits = jnp.take_along_axis(logits, at[..., None], axis=0)
    return classes.T, logits.swapaxes(0, 1)


def _check(model, prompts, prompt_lengths, num_new, key, temperature):
    if not hasattr(model, "decode_step"):
        raise ValueError(
            "`model` should have init_cache and decode_step, but "
            f"{type(model).__name__} has not; generation needs an autoregressive "
            "transformer."
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
    if not isinstance(prompt_lengths, jax.core.Tracer):
        low, high = int(prompt_lengths.min()), int(prompt_lengths.max())
        if low < 1 or high > prompts.shape[1]:
            raise ValueError(
                f"`prompt_lengths` should lie from 1 to {prompts.shape[1]}, but got "
                f"values from {low} to {high}."
            )
    if num_new < 1:
        raise ValueError(f"`num_new` should be at least 1, but got {num_new}.")
    if temperature < 0.0:
        raise ValueError(f"`temperature` should not be negative, got {temperature}.")
    if temperature > 0.0 and key is None:
        raise ValueError("`key` should be given for a temperature above 0.")
