"""SM: follow stack instructions and print the stack that is left."""

import jax
import jax.numpy as jnp

from stackformer.tasks.base import Length, Task
from stackformer.tasks.sampling import below, position_bits
from stackformer.tasks.vocabulary import END

_POP, _PUSH_A, _PUSH_B = 2, 3, 4
_END = 2


class StackManipulation(Task):
    """A stack from bottom to top, then instructions; the answer is the final stack.

    The answer is printed from top to bottom and ends with "$", which fills the rest;
    |y| = |x| + 1, and positions after the first "$" do not count. A pop of the empty
    stack does nothing. The initial stack has a length uniform over 1..n-1 (n = 1:
    the stack is all of the string), its symbols are uniform over {a, b} and the
    instructions uniform over {pop, push_a, push_b}.

    The paper's example: a stack b a b (b on top), of which pop removes one.

    >>> StackManipulation().answer("b a b pop push_a push_b")
    'baab$'
    >>> StackManipulation().answer("a pop pop push_b")
    'b$'
    """

    name = "stack_manipulation"
    short_name = "SM"
    level = "dcf"
    input_symbols = ("a", "b", "pop", "push_a", "push_b")
    output_symbols = ("a", "b", END)
    chance = 0.489

    def output_length(self, length: Length) -> Length:
        return length + 1

    def strings(
        self, key: jax.Array, batch_size: int, length: Length, max_length: int
    ) -> jax.Array:
        symbol_key, stack_key = jax.random.split(key)
        bits = position_bits(symbol_key, batch_size, max_length)
        choices = jax.random.bits(stack_key, (batch_size, 1))
        stack_length = 1 + below(choices, jnp.maximum(length - 1, 1))
        in_stack = jnp.arange(max_length)[None, :] < stack_length
        return jnp.where(in_stack, below(bits, 2), _POP + below(bits, 3))

    def solve(self, inputs: jax.Array, length: Length) -> jax.Array:
        """All positions at once.

        With S the running sum of +1 (push) and -1 (pop), the depth of a stack whose
        pops stop at the bottom is S_t - min(0, min_{s<=t} S_s). A symbol pushed to
        depth d is in the final stack if the depth never falls below d later on.
        """
        batch_size, width = inputs.shape
        inside = jnp.arange(width)[None, :] < length
        is_push = (inputs != _POP) & inside
        steps = jnp.where(inside, jnp.where(is_push, 1, -1), 0)
        sums = jnp.cumsum(steps, axis=1)
        depth = sums - jnp.minimum(jax.lax.cummin(sums, axis=1), 0)
        lowest_from_here = jax.lax.cummin(depth, axis=1, reverse=True)
        kept = is_push & (lowest_from_here >= depth)

        symbols = jnp.where(inputs >= _PUSH_A, inputs - _PUSH_A, inputs)
        below_top = depth[:, -1:] - depth
        place = jnp.where(kept, below_top, width + 1)
        rows = jnp.arange(batch_size)[:, None]
        empty = jnp.full((batch_size, width + 1), _END, jnp.int32)
        return empty.at[rows, place].set(symbols, mode="drop")
