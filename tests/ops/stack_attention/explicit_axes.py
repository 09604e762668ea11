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


def pulled(function, actions, values, cotangent):
    """Tops and both gradients."""
    top, pull = jax.vjp(function, actions, values)
    return top, *pull(cotangent)


def ways(attend, arrays):
    """The same computation on split arrays, in every way that a user may ask for."""
    whole = [NamedSharding(MESH, P("data")), *[NamedSharding(MESH, P("data"))] * 2]
    by_string = [jax.device_put(x, s) for x, s in zip(arrays, whole, strict=True)]
    split = NamedSharding(MESH, SPLIT["features"])
    by_feature = [by_string[0], *(jax.device_put(x, split) for x in arrays[1:])]
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
    pairs = zip(got, expected, strict=True)
    return max(float(np.abs(np.asarray(a) - np.asarray(b)).max()) for a, b in pairs)


def main():
    keys = jax.random.split(jax.random.key(0), 3)
    actions = jax.nn.softmax(jax.random.normal(keys[0], (8, 7, 3)))
    arrays = [actions, *(jax.random.normal(k, (8, 7, 4)) for k in keys[1:])]
    # JAX cannot interpret a Pallas kernel in `shard_map`; that it compiles there for
    # a TPU is tested in `tests/aot`.
    names = [name for name in FORMS if name != "pallas"]
    cases = [{"implementation": name} for name in (*names, None)]
    cases += [
        {"implementation": name, "max_depth": 4, "chunk_size": 3}
        for name in names
        if FORMS[name].refuses(7, Options(max_depth=4, chunk_size=3)) is None
    ]
    rows = []
    for options in cases:
        attend = functools.partial(stack_attention, **options)
        expected = jax.jit(functools.partial(pulled, attend))(*arrays)
        for way, run in ways(attend, arrays).items():
            if way == "eager" and options["implementation"] == "reference":
                continue  # hundreds of small programs
            try:
                rows.append((str(options), way, difference(run(), expected)))
            except Exception as error:
                rows.append((str(options), way, f"{type(error).__name__}: {error}"))
        split = jax.device_put(actions, NamedSharding(MESH, P("data")))
        alpha = stack_attention_weights(split, **options)
        wanted = stack_attention_weights(actions, **options)
        rows.append((str(options), "weights", difference([alpha], [wanted])))
    by_position = jax.device_put(arrays[1], NamedSharding(MESH, P(None, None)))
    padded = jnp.pad(by_position, ((0, 0), (0, 1), (0, 0)))
    padded = jax.device_put(padded, NamedSharding(MESH, P(None, "data")))
    try:
        stack_attention(jnp.pad(actions, ((0, 0), (0, 1), (0, 0))), padded)
    except ValueError as error:
        rows.append(("None", "positions split", str(error)))
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
