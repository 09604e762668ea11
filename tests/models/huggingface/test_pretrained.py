"""Hugging Face folders: what is read, what is refused, what is written."""

import json
import pathlib
import shutil
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.flax import save_file as save_jax
from safetensors.numpy import load_file, save_file

from stackformer.models.huggingface.pretrained import (
    load_pretrained,
    read_config,
    save_pretrained,
)

GOLDEN = pathlib.Path(__file__).parents[2] / "golden"
KINDS = ("gpt2", "roberta")


@pytest.fixture
def folder(tmp_path):
    """A copy of the golden GPT-2 that a test may damage."""
    return pathlib.Path(shutil.copytree(GOLDEN / "gpt2", tmp_path / "gpt2"))


@nnx.jit
def run(model, tokens):
    return model(tokens)


def change_tensors(folder: pathlib.Path, change) -> None:
    path = folder / "model.safetensors"
    save_file(change(load_file(path)), path)


def logits_of(folder, kind="gpt2", **options):
    tokens = np.load(GOLDEN / kind / "expected.npz")["tokens"]
    model = load_pretrained(folder, rngs=nnx.Rngs(3), **options)
    return np.asarray(run(model, jnp.asarray(tokens, jnp.int32)))


@pytest.mark.parametrize("kind", KINDS)
def test_export_writes_the_same_tensors_back(kind, tmp_path):
    model = load_pretrained(GOLDEN / kind, stack=False, rngs=nnx.Rngs(0))
    save_pretrained(model, tmp_path)
    before = load_file(GOLDEN / kind / "model.safetensors")
    after = load_file(tmp_path / "model.safetensors")
    assert sorted(before) == sorted(after)
    for name, array in before.items():
        np.testing.assert_array_equal(array, after[name], err_msg=name)
    old = json.loads((GOLDEN / kind / "config.json").read_text())
    new = json.loads((tmp_path / "config.json").read_text())
    differing = {k for k in new if k in old and old[k] not in (None, new[k])}
    assert not differing


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_with_stacks_comes_back_whole(kind, tmp_path):
    options = dict(stack_gate=0.25, stack_layers=(1,))
    model = load_pretrained(GOLDEN / kind, rngs=nnx.Rngs(0), **options)
    save_pretrained(model, tmp_path)
    assert read_config(tmp_path) == model.config
    tokens = jnp.asarray(np.load(GOLDEN / kind / "expected.npz")["tokens"], jnp.int32)
    again = load_pretrained(tmp_path, rngs=nnx.Rngs(5))
    np.testing.assert_array_equal(run(again, tokens), run(model, tokens))
    plain = load_pretrained(tmp_path, rngs=nnx.Rngs(5), stack=False)
    vanilla = load_pretrained(GOLDEN / kind, rngs=nnx.Rngs(0), stack=False)
    np.testing.assert_array_equal(run(plain, tokens), run(vanilla, tokens))
    # Options that change no parameter: the saved stacks all the same.
    scanned = {"name": "superposition", "implementation": "scan"}
    again = load_pretrained(tmp_path, rngs=nnx.Rngs(5), stack=scanned)
    np.testing.assert_allclose(run(again, tokens), run(model, tokens), atol=1e-5)
    # Other parameters than the saved ones: fresh stacks, and a word, the same model.
    with pytest.warns(UserWarning, match="begin with new parameters"):
        other = load_pretrained(
            tmp_path, rngs=nnx.Rngs(5), stack={"name": "superposition", "max_pops": 2}
        )
    assert other.blocks[1].stack.num_actions == 4
    kernel = model.blocks[0].attention.qkv.kernel[...]
    np.testing.assert_array_equal(other.blocks[0].attention.qkv.kernel[...], kernel)


def test_files_as_the_hub_has_them_are_read(folder):
    """GPT-2's own file: no prefix, constant buffers, half precision."""
    expected = logits_of(folder, stack=False)

    def change(tensors):
        tensors = {k.removeprefix("transformer."): v for k, v in tensors.items()}
        tensors["h.0.attn.bias"] = np.tril(np.ones((1, 1, 8, 8), np.float32))
        tensors["h.0.attn.masked_bias"] = np.float32([-1e4])
        tensors["lm_head.weight"] = tensors["wte.weight"]
        return tensors

    change_tensors(folder, change)
    np.testing.assert_array_equal(logits_of(folder, stack=False), expected)
    tensors = load_file(folder / "model.safetensors")
    half = {name: jnp.asarray(array, jnp.bfloat16) for name, array in tensors.items()}
    save_jax(half, folder / "model.safetensors")
    np.testing.assert_allclose(logits_of(folder, stack=False), expected, atol=0.1)


def test_missing_and_unexpected_tensors_are_all_listed(folder):
    def change(tensors):
        del tensors["transformer.h.1.mlp.c_fc.bias"], tensors["transformer.wpe.weight"]
        return {**tensors, "transformer.extra": np.zeros(1, np.float32)}

    change_tensors(folder, change)
    with pytest.raises(ValueError) as error:
        load_pretrained(folder, rngs=nnx.Rngs(0))
    for line in (
        "missing: transformer.h.1.mlp.c_fc.bias",
        "missing: transformer.wpe.weight",
        "unexpected: transformer.extra",
    ):
        assert line in str(error.value)


def test_wrong_shapes_and_untied_heads_are_errors(folder):
    change_tensors(
        folder, lambda t: {**t, "transformer.ln_f.bias": np.zeros(7, np.float32)}
    )
    with pytest.raises(
        ValueError, match=r"`final_norm\.bias` shape should be \(32,\), but got \(7,\)"
    ):
        load_pretrained(folder, rngs=nnx.Rngs(0))
    change_tensors(
        folder, lambda t: {**t, "lm_head.weight": t["transformer.wte.weight"] + 1}
    )
    with pytest.raises(ValueError, match=r"tied: lm_head\.weight"):
        load_pretrained(folder, rngs=nnx.Rngs(0))


def test_pickles_are_refused_with_the_way_out(folder):
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"cos\nsystem\n")
    for path in (folder, folder / "pytorch_model.bin"):
        with pytest.raises(ValueError, match=r"pickle.*code.*save_pretrained"):
            load_pretrained(path, rngs=nnx.Rngs(0))


def test_other_folders_say_what_is_wrong(folder, tmp_path):
    config = json.loads((folder / "config.json").read_text())

    def write(**changes):
        (folder / "config.json").write_text(json.dumps({**config, **changes}))

    with pytest.raises(ValueError, match="not there"):
        read_config(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"no config\.json"):
        read_config(tmp_path)
    write(model_type="llama")
    with pytest.raises(ValueError, match="'gpt2' or 'roberta', but got 'llama'"):
        read_config(folder)
    write(activation_function="relu")
    with pytest.raises(ValueError, match="activation_function"):
        read_config(folder)
    write()
    (folder / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"model\.safetensors is not there"):
        load_pretrained(folder, rngs=nnx.Rngs(0))


def test_the_library_imports_without_the_extra_and_says_how_to_get_it():
    program = """
import sys
sys.modules["safetensors"] = sys.modules["tokenizers"] = None
from stackformer.extras import require
import stackformer.models.huggingface.pretrained, stackformer.data.tokenization
for name in ("safetensors", "tokenizers"):
    try:
        require(name)
    except ImportError as error:
        assert "pip install 'stackformer-jax[lm]'" in str(error), error
    else:
        raise AssertionError(name)
assert "torch" not in sys.modules and "transformers" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_three_dropout_rates_are_kept_apart(tmp_path):
    rates = {"resid_pdrop": 0.1, "embd_pdrop": 0.2, "attn_pdrop": 0.3}
    folder = tmp_path / "gpt2"
    shutil.copytree(GOLDEN / "gpt2", folder)
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**content, **rates}))
    model = load_pretrained(folder, stack=False, rngs=nnx.Rngs(0))
    config = model.config
    found = (config.dropout, config.embedding_rate, config.attention_rate)
    assert found == (0.1, 0.2, 0.3)
    assert {block.weight_dropout for block in model.blocks} == {0.3}
    save_pretrained(model, tmp_path / "again")
    written = json.loads((tmp_path / "again" / "config.json").read_text())
    assert {name: written[name] for name in rates} == rates
