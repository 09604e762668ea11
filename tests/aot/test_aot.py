"""Everything compiles for a TPU and a GPU that are not there.

    pip install -e '.[test,aot-tpu,aot-gpu]' && python -m pytest -m aot

Only shapes are given; nothing runs. Sizes are small where compiling takes long.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from stackformer import stack_attention
from stackformer.commands.compile import programs, report, targets
from stackformer.models.language.gpt2 import GPT2, GPT2Config
from stackformer.nn.stacks import STACKS
from stackformer.ops.frames import stack_of_frames
from stackformer.ops.frames.api import FORMS as FRAMES
from stackformer.ops.stack_attention.dispatch import assume_backend
from stackformer.ops.stack_attention.forms import FORMS
from stackformer.problems.dcf.config import DCFConfig
from stackformer.problems.dcf.presets import preset_values
from stackformer.problems.dcf.problem import make_problem
from stackformer.training.mesh import Placement
from stackformer.training.problem import Problem

pytestmark = pytest.mark.aot
# Described devices cannot read what is kept for real ones.
jax.config.update("jax_enable_compilation_cache", False)
both = pytest.mark.parametrize("target", ["v5e:2x2", "h100"])


def devices(target):
    complaint = targets.missing_package(target)
    if complaint is not None:
        pytest.skip(complaint)
    return targets.devices_of(target)


def compiled(program, target):
    """The row of the table; a failure to compile is a failure."""
    platform = targets.platform_of(target)
    with assume_backend(platform):
        row = report.compile_one(program, platform)
    print(report.line(row))
    assert row.error is None, row.error
    assert row.compile_seconds and row.argument_mib is not None
    return row


def kernel(target, name, **sizes):
    found = programs.kernels(devices(target), **sizes)
    return next(p for p in found if p.name.startswith(f"{name}, B"))


@both
@pytest.mark.parametrize("name", FORMS)
def test_every_form_with_its_gradient(target, name):
    length = programs.LONGEST_REFERENCE if name == "reference" else 129
    row = compiled(kernel(target, name, length=length), target)
    assert not row.collectives
    if name == "pallas" and target == "h100":
        # Two kernels, and what pads and joins the arrays around them; scan has T.
        assert row.launches < 40
    if name == "scan" and target == "h100":
        assert row.launches > length


@pytest.mark.parametrize("kind", [AxisType.Explicit, AxisType.Auto])
def test_the_fused_form_on_a_mesh(kind):
    """With explicit axes as it is, with the others inside `jax.shard_map`."""
    mesh = Mesh(np.array(devices("v5e:2x2")), ("data",), axis_types=(kind,))
    attend = functools.partial(stack_attention, implementation="pallas")
    if kind == AxisType.Auto:
        attend = jax.shard_map(
            attend, mesh=mesh, in_specs=P("data"), out_specs=P("data")
        )

    def both_ways(actions, values, cotangent):
        top, pull = jax.vjp(attend, actions, values)
        return top, *pull(cotangent)

    arrays = [
        jax.ShapeDtypeStruct(
            (8, 65, n), jnp.float32, sharding=NamedSharding(mesh, P("data"))
        )
        for n in (3, 16, 16)
    ]
    lower = functools.partial(jax.jit(both_ways).lower, *arrays)
    row = compiled(programs.Program("pallas on a mesh", lower), "v5e:2x2")
    assert not row.collectives


@both
def test_the_fused_form_of_several_strings(target):
    where = Placement.create(devices=devices(target)).replicated
    arrays = [
        jax.ShapeDtypeStruct(shape, dtype, sharding=where)
        for shape, dtype in (
            ((2, 65, 3), jnp.float32),
            *[((2, 65, 16), jnp.float32)] * 2,
            ((2, 65), jnp.int32),
        )
    ]

    def both_ways(actions, values, cotangent, segment_ids):
        attend = functools.partial(
            stack_attention, implementation="pallas", segment_ids=segment_ids
        )
        top, pull = jax.vjp(attend, actions, values)
        return top, *pull(cotangent)

    lower = functools.partial(jax.jit(both_ways).lower, *arrays)
    compiled(programs.Program("pallas, several strings", lower), target)


def test_the_fused_form_on_the_next_tpu():
    compiled(kernel("v6e:2x2", "pallas", length=129), "v6e:2x2")


@both
@pytest.mark.parametrize("name", ["scan", "pallas", "recurrent"])
def test_memory_at_2049_positions(target, name):
    """At most twice softmax attention; chunkwise is left out: it compiles a minute."""
    rows = [
        compiled(kernel(target, form, batch=2, length=2049), target)
        for form in ("softmax attention", name)
    ]
    assert rows[1].temp_mib <= 2 * rows[0].temp_mib


def test_train_block_on_sixteen_chips():
    """Three layers, one bucket: the paper's five in three take minutes."""
    placement = Placement.create({"seeds": 4, "data": 4}, devices=devices("v5e:4x4"))
    values = preset_values("quick", "RS", "stack_transformer")
    config = DCFConfig(
        **values
        | {"task": "RS", "seeds": (0, 1, 2, 3), "train_length": 8}
        | {"model_config": {"num_layers": 3, "d_model": 32, "num_heads": 4}}
    )
    lower = functools.partial(
        programs.train_block, make_problem(config), config.seeds, 5, placement
    )
    row = compiled(programs.Program("train", lower), "v5e:4x4")
    assert row.collectives["all-reduce"] > 0


def test_the_train_block_of_the_main_command_on_a_gpu():
    config = programs.quick(task="RS", stack=None)
    row = compiled(next(programs.train(devices("h100"), config)), "h100")
    assert not row.collectives


def test_gpt2_base_fits_into_four_chips():
    config = GPT2Config.of_size("base", scan_layers=True, remat=True, max_length=128)

    def batch(data, key, step, bucket, progress):
        del data, bucket, progress
        tokens = jax.random.fold_in(key, step)
        return jax.random.randint(tokens, (8, 128), 0, config.vocab_size)

    def loss(model, tokens, rngs, progress):
        del progress
        logits = model(tokens, rngs=rngs)[:, :-1]
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])
        return losses.mean(), {}

    problem = Problem(
        init=lambda key: GPT2(config, rngs=nnx.Rngs(key)),
        batch=batch,
        loss=loss,
        optimizer=optax.adamw(1e-4),
    )
    placement = Placement.create({"params": 4}, devices=devices("v5e:2x2"))
    lower = functools.partial(programs.train_block, problem, (0,), 2, placement)
    row = compiled(programs.Program("GPT-2 base, params:4", lower), "v5e:2x2")
    assert row.argument_mib + row.temp_mib < 16 * 1024
    # Parameters and both moments of Adam, a quarter of them on each chip.
    parameters = 3 * 124e6 * 4 / 2**20
    assert parameters / 4 < row.argument_mib < parameters / 2


@both
def test_decoding(target):
    config = programs.quick(task="RS", stack=None)
    compiled(next(programs.decoding(devices(target), config)), target)


@both
@pytest.mark.parametrize("stack", [name for name in STACKS if name != "superposition"])
def test_every_other_stack(target, stack):
    """A small train block, with its gradients, and the decoding step."""
    values = preset_values("smoke", "RS", "stack_transformer", stack)
    config = DCFConfig(**values | {"task": "RS", "stack": stack, "seeds": (0,)})
    where = devices(target)[:1]
    for program in (
        *programs.train(where, config),
        *programs.decoding(where, config),
    ):
        compiled(program, target)


@both
@pytest.mark.parametrize("name", [name for name in FRAMES if name != "reference"])
def test_every_form_of_frames(target, name):
    """Values, and the gradients of the items and of F."""
    where = Placement.create(devices=devices(target)[:1]).replicated
    arrays = [
        jax.ShapeDtypeStruct(shape, jnp.float32, sharding=where)
        for shape in ((2, 65, 3), (2, 65, 8), (6 * 8, 8), (2, 65, 6, 8))
    ]

    def both_ways(actions, items, kernel, cotangent):
        def frames(items, kernel):
            def close(frame, _):
                return jnp.tanh(frame.reshape(*frame.shape[:-2], -1) @ kernel)

            return stack_of_frames(
                actions, items, close, num_items=6, implementation=name
            )

        values, pull = jax.vjp(frames, items, kernel)
        return values, *pull(cotangent)

    lower = functools.partial(jax.jit(both_ways).lower, *arrays)
    compiled(programs.Program(f"frames, {name}", lower), target)


def test_bfloat16_layers_too():
    """The scanned layers of a bfloat16 model, value and gradient."""
    where = Placement.create(devices=devices("v5e:2x2")[:1]).replicated
    config = GPT2Config.of_size(
        "tiny", vocab_size=300, dtype="bfloat16", scan_layers=True
    )
    graph, state = nnx.split(nnx.eval_shape(lambda: GPT2(config, rngs=nnx.Rngs(0))))

    def loss(state, tokens):
        return nnx.merge(graph, state)(tokens).mean()

    def placed(x):
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where)

    tokens = jax.ShapeDtypeStruct((2, 64), jnp.int32, sharding=where)
    lower = functools.partial(
        jax.jit(jax.grad(loss)).lower, jax.tree.map(placed, state), tokens
    )
    compiled(programs.Program("bfloat16", lower), "v5e:2x2")
