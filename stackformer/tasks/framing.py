"""From samples to the token sequences of the paper's two settings.

With x the input of length n, y the answer of length m, and T = 1 + L + M:

    mlm   <bos> x_1 .. x_n <sep> <mask> .. <mask>  <pad> ..
    alm   <bos> x_1 .. x_n <sep>   y_1  .. y_{m-1} <pad> ..

In both settings position n + j (counting <bos> as 0) predicts y_j, j = 1..m: the
separator predicts y_1, and a mask (the symbol before y_j) every other y_j.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from stackformer.checks import MODES
from stackformer.tasks.base import Sample, Task
from stackformer.tasks.vocabulary import BOS, MASK, PAD, SEP


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Framed:
    """What a model reads and what it should say.

    Attributes:
      tokens: (B, T) int32 token ids, T = 1 + L + M.
      mask: (B, T) bool, True at real tokens (padding is at the right end).
      targets: (B, T) int32 classes; 0 where there is no target.
      target_mask: (B, T) bool, True at the positions that count.
    """

    tokens: jax.Array
    mask: jax.Array
    targets: jax.Array
    target_mask: jax.Array


def frame(task: Task, sample: Sample, mode: str) -> Framed:
    """Frame a sample for masked ("mlm") or autoregressive ("alm") prediction.

    Args:
      task: the task the sample is from.
      sample: inputs (B, L), outputs (B, M); its length may be traced.
      mode: "mlm" or "alm".

    Returns:
      `Framed` arrays of shape (B, 1 + L + M).

    Example:
      >>> import jax
      >>> from stackformer import tasks
      >>> task = tasks.get("RS")
      >>> sample = task.sample(jax.random.key(4), 1, 2, max_length=3)
      >>> task.decode_sample(sample)
      [('ba', 'ab')]
      >>> task.decode_tokens(tasks.frame(task, sample, "mlm").tokens[0])
      '<bos> b a <sep> <mask> <pad> <pad>'
      >>> task.decode_tokens(tasks.frame(task, sample, "alm").tokens[0])
      '<bos> b a <sep> a <pad> <pad>'
    """
    if mode not in MODES:
        raise ValueError(f'`mode` should be "mlm" or "alm", but got {mode!r}')
    return _frame(task, mode, sample)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _frame(task: Task, mode: str, sample: Sample) -> Framed:
    batch_size, max_length = sample.inputs.shape
    max_output = sample.outputs.shape[1]
    position = jnp.arange(1 + max_length + max_output)
    length = jnp.asarray(sample.length)
    first = length + 1
    answer = position - first
    is_input = (position >= 1) & (position < first)
    is_answer = (answer >= 0) & (answer < task.output_length(length))

    shape = (batch_size, position.size)
    x = jnp.asarray(task.input_tokens)[sample.inputs]
    x = x[:, jnp.clip(position - 1, 0, max_length - 1)]
    if mode == "mlm":
        asked = jnp.full(shape, MASK)
    else:
        y = jnp.asarray(task.output_tokens)[sample.outputs]
        asked = y[:, jnp.clip(answer - 1, 0, max_output - 1)]
    asked = jnp.where((answer == 0)[None, :], SEP, asked)
    tokens = jnp.where(is_input[None, :], x, PAD)
    tokens = jnp.where(is_answer[None, :], asked, tokens)
    tokens = jnp.where((position == 0)[None, :], BOS, tokens).astype(jnp.int32)

    here = jnp.clip(answer, 0, max_output - 1)
    targets = jnp.where(is_answer[None, :], sample.outputs[:, here], 0)
    counts = jnp.asarray(sample.output_mask)[:, here]
    target_mask = counts & is_answer[None, :]
    mask = (position == 0) | is_input | is_answer
    return Framed(
        tokens=tokens,
        mask=jnp.broadcast_to(mask[None, :], shape),
        targets=targets,
        target_mask=target_mask,
    )
