"""Every form on eight devices with explicit axes; run by `test_sharding.py`.

Prints a JSON list of (form, way, error); an error is a number, or what was raised.
"""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from stackformer import stack_attention, stack_attention_weights
from stackformer.ops.stack_attention.form import Options
from stackformer.ops.stack_attention.forms import FORMS

jax.config.update("jax_numpy_rank_promotion", "raise")
MESH = jax.make_mesh((4, 2), ("data", "model"))  # explicit axes, the default
SPLIT = {"data": P("data"), "features": P("data", None, "model")}


def pulled(function, actions, values, state, ids, cotangent):
    """What is returned, and all gradients."""
    result, pull = jax.vjp(
        lambda *inputs: function(*inputs, ids), actions, values, state
    )
    return result, pull(cotangent)


def ways(attend, arrays):
    """The same computation on split arrays, in every way that a user may ask for."""
    actions, values, state, ids, cotangent = arrays

    def put(spec, tree):
        return jax.tree.map(
            lambda x: jax.device_put(x, NamedSharding(MESH, spec)), tree
        )

    by_string = put(P("data"), arrays)
    by_feature = (
        put(P("data"), actions),
        *put(SPLIT["features"], (values, state)),
        put(P("data"), ids),
        put(SPLIT["features"], cotangent),
    )
    run = functools.partial(pulled, attend)
    mapped = jax.shard_map(attend, mesh=MESH, out_specs=SPLIT["features"])

    def under_mesh():
        with jax.set_mesh(MESH):
            return jax.jit(run)(*by_string)

    return {
        "eager": lambda: run(*by_string),
        "jit, mesh set": under_mesh,
        "jit, features split": lambda: jax.jit(run)(*by_feature),
        "shard_map": lambda: jax.jit(functools.partial(pulled, mapped))(*by_feature),
    }


def difference(got, expected):
    pairs = zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True)
    return max(float(np.abs(np.asarray(a) - np.asarray(b)).max()) for a, b in pairs)


def attend_with(options, actions, values, state, ids):
    return stack_attention(
        actions, values, initial_state=state, segment_ids=ids, **options
    )


def main():
    keys = jax.random.split(jax.random.key(0), 5)
    actions = jax.nn.softmax(jax.random.normal(keys[0], (8, 7, 3)))
    values, cotangent = (jax.random.normal(k, (8, 7, 4)) for k in keys[1:3])
    arrays = (actions, values, None, None, cotangent)
    # Strings in a row, the first of which goes on with a state of two elements.
    ids = jnp.arange(8)[:, None] % 3 * (jnp.arange(7) > 3)[None, :]
    state = jax.random.normal(keys[3], (8, 3, 4))
    packed = (actions, values, None, ids, cotangent)
    last = jax.random.normal(keys[4], (8, 2 + 7 + 1, 4))
    pieces = (actions, values, state, ids, (cotangent, last))
    # JAX cannot interpret a Pallas kernel in `shard_map`; that it compiles there for
    # a TPU is tested in `tests/aot`.
    names = [name for name in FORMS if name != "pallas"]
    cases = [({"implementation": name}, arrays) for name in (*names, None)]
    cases += [
        ({"implementation": name, "max_depth": 4, "chunk_size": 3}, arrays)
        for name in names
        if FORMS[name].refuses(7, Options(max_depth=4, chunk_size=3)) is None
    ]
    cases += [({"implementation": "scan"}, packed)]
    cases += [
        ({"implementation": name, "return_state": True}, pieces)
        for name in names
        if FORMS[name].refuses(7, Options(return_state=True)) is None
    ]
    rows = []
    for options, given in cases:
        attend = functools.partial(attend_with, options)
        expected = jax.jit(functools.partial(pulled, attend))(*given)
        label = str(options) + " packed" * (given[3] is not None)
        for way, run in ways(attend, given).items():
            if way == "eager" and options["implementation"] == "reference":
                continue  # hundreds of small programs
            try:
                rows.append((label, way, difference(run(), expected)))
            except Exception as error:
                rows.append((label, way, f"{type(error).__name__}: {error}"))
        if "return_state" in options:
            continue
        split, split_ids = (
            x if x is None else jax.device_put(x, NamedSharding(MESH, P("data")))
            for x in (actions, given[3])
        )
        alpha = stack_attention_weights(split, segment_ids=split_ids, **options)
        wanted = stack_attention_weights(actions, segment_ids=given[3], **options)
        rows.append((label, "weights", difference([alpha], [wanted])))
    by_position = jax.device_put(values, NamedSharding(MESH, P(None, None)))
    padded = jnp.pad(by_position, ((0, 0), (0, 1), (0, 0)))
    padded = jax.device_put(padded, NamedSharding(MESH, P(None, "data")))
    try:
        stack_attention(jnp.pad(actions, ((0, 0), (0, 1), (0, 0))), padded)
    except ValueError as error:
        rows.append(("None", "positions split", str(error)))
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
