"""Pretrained weights: reads and writes the folders of the Hugging Face hub, no torch.

A folder has config.json, model.safetensors and the tokenizer's files. The names are
mapped in `names.py`. Pickle files are refused: loading one runs code from it.
"""

import json
import pathlib
import warnings
from typing import Any, TypeVar

import jax.numpy as jnp
import numpy as np
from flax import nnx

from stackformer.extras import require
from stackformer.models.huggingface import names as hf_names
from stackformer.models.huggingface.config import (
    PICKLES,
    WEIGHTS_FILE,
    checked_folder,
    pickle_message,
    read_config,
    saved_stacks,
    stack_fields,
    written_config,
)
from stackformer.models.language.config import LanguageModelConfig
from stackformer.models.language.gpt2 import GPT2, GPT2Config
from stackformer.models.language.roberta import Roberta

Weights = dict[str, np.ndarray]
Model = TypeVar("Model", bound=nnx.Module)

_INDEX = "model.safetensors.index.json"


def load_pretrained(
    folder: str | pathlib.Path, *, rngs: nnx.Rngs, **overrides: Any
) -> GPT2 | Roberta:
    """The model in a Hugging Face folder, with stacks added unless `stack=None`.

    Args:
      folder: has config.json (model_type "gpt2" or "roberta") and model.safetensors.
      rngs: the "params" stream initialises the stacks' parameters, which a pretrained
        folder does not have; a folder of `save_pretrained` has them, and they are used
        where kind and shapes are the same (a warning says where they are not). With
        `stack_gate=0.0` the first outputs are the pretrained ones; by default the stack
        is added plainly, as in the paper.
      **overrides: fields of `GPT2Config` or `RobertaConfig` that do not change the
        shape of the pretrained tensors: stack options, dropout, dtype, remat.

    Returns:
      A `GPT2` or a `Roberta`.
    """
    config = read_config(folder, **overrides)
    weights = read_weights(folder, config)
    if isinstance(config, GPT2Config):
        return with_weights(GPT2(config, rngs=rngs), weights)
    return with_weights(Roberta(config, rngs=rngs), weights)


def read_weights(folder: str | pathlib.Path, config: LanguageModelConfig) -> Weights:
    """All tensors of a folder under our paths, in float32.

    Raises:
      ValueError: a tensor is missing, is unexpected, has another shape or should
        repeat another one and does not; the message lists every such tensor.
    """
    folder = checked_folder(folder)
    kind = config.model_type
    tensors = {
        hf_names.full_name(kind, name): array
        for name, array in _read_tensors(folder).items()
    }
    tensors = {
        name: array
        for name, array in tensors.items()
        if not hf_names.is_ignored(kind, name)
    }
    ours = {
        name.removeprefix(hf_names.OURS): tensors.pop(name)
        for name in list(tensors)
        if name.startswith(hf_names.OURS)
    }
    rows = hf_names.rows(config)
    _check_names(folder, tensors, rows, kind)
    weights = {}
    for row in rows:
        parts = [tensors[name] for name in row.names]
        if row.layout == "transpose":
            parts = [part.T for part in parts]
        weights[row.path] = np.concatenate(parts, -1) if len(parts) > 1 else parts[0]
    if _are_stacks_of(folder, ours, config, {row.path for row in rows}):
        weights |= ours
    return weights


def _are_stacks_of(
    folder: pathlib.Path, ours: Weights, config: LanguageModelConfig, others: set[str]
) -> bool:
    """Whether the parameters of a folder's stacks are those of this model's stacks.

    They are where kind, paths and shapes are the same, whatever the options that change
    neither. A model that shall have other stacks begins with new ones, and says so.
    """
    saved, wanted = saved_stacks(folder), stack_fields(config)
    if saved is None or wanted is None:
        return False
    kind: Any = GPT2 if isinstance(config, GPT2Config) else Roberta
    model = nnx.eval_shape(lambda: kind(config, rngs=nnx.Rngs(0)))
    leaves = nnx.to_flat_state(nnx.state(model))
    shapes = {_path(path): leaf.shape for path, leaf in leaves}
    shapes = {path: shape for path, shape in shapes.items() if path not in others}
    same_kind = saved["stack"]["name"] == wanted["stack"]["name"]
    if same_kind and shapes == {path: array.shape for path, array in ours.items()}:
        return True
    warnings.warn(
        f"The stacks in {folder} are {saved}, and this model shall have {wanted}: its "
        "stacks begin with new parameters.",
        stacklevel=4,
    )
    return False


def with_weights(model: Model, weights: Weights) -> Model:
    """Puts weights into a model, in place, and returns it; the rest stays.

    Raises:
      ValueError: a shape differs; the message lists every such parameter.
    """
    state = nnx.state(model)
    flat = {_path(path): leaf for path, leaf in nnx.to_flat_state(state)}
    wrong = [
        f"`{path}` shape should be {flat[path].shape}, but got {array.shape}"
        for path, array in weights.items()
        if array.shape != flat[path].shape
    ]
    if wrong:
        raise ValueError(
            "The tensors should have the shapes that config.json implies, but:\n  "
            + "\n  ".join(wrong)
        )
    for path, array in weights.items():
        flat[path][...] = jnp.asarray(array, flat[path].dtype)
    nnx.update(model, state)
    return model


def save_pretrained(
    model: GPT2 | Roberta, folder: str | pathlib.Path, tokenizer: Any = None
) -> None:
    """Writes a folder that `load_pretrained` and transformers read.

    Stack parameters are written as `stackformer.blocks.N...` beside the others, and
    their options under "stackformer" in config.json; transformers ignores both, so
    there the model is the one without its stacks.

    Args:
      model: a `GPT2` or a `Roberta`.
      folder: is made where it does not exist.
      tokenizer: a `tokenizers.Tokenizer` whose files are written too.
    """
    save_file = require("safetensors.numpy").save_file
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    state = nnx.to_flat_state(nnx.state(model))
    flat = {_path(path): np.asarray(leaf[...]) for path, leaf in state}
    tensors = {}
    for row in hf_names.rows(model.config):
        array = flat.pop(row.path)
        parts = np.split(array, len(row.names), -1) if len(row.names) > 1 else [array]
        for name, part in zip(row.names, parts, strict=True):
            part = part.T if row.layout == "transpose" else part
            tensors[name] = np.array(part, order="C")
    # What is left are stacks and gates.
    tensors |= {hf_names.OURS + path: array for path, array in flat.items()}
    save_file(tensors, folder / WEIGHTS_FILE, metadata={"format": "pt"})
    config = written_config(model.config)
    text = json.dumps(config, indent=2) + "\n"
    (folder / "config.json").write_text(text, encoding="utf-8")
    if tokenizer is not None:
        tokenizer.save(str(folder / "tokenizer.json"))
        tokenizer.model.save(str(folder))


def _path(path: tuple) -> str:
    return ".".join(map(str, path))


def _read_tensors(folder: pathlib.Path) -> Weights:
    files = [folder / WEIGHTS_FILE]
    if (folder / _INDEX).is_file():
        index = json.loads((folder / _INDEX).read_text(encoding="utf-8"))["weight_map"]
        files = [
            folder / pathlib.Path(name).name for name in sorted(set(index.values()))
        ]
    missing = [path for path in files if not path.is_file()]
    if missing:
        pickles = [path for path in folder.iterdir() if path.suffix in PICKLES]
        if pickles:
            raise ValueError(pickle_message(sorted(pickles)[0]))
        raise ValueError(
            f"`pretrained` should have its weights in {WEIGHTS_FILE}, but "
            f"{missing[0]} is not there; download it from the model's page on the hub."
        )
    safe_open = require("safetensors").safe_open
    tensors = {}
    for path in files:
        with safe_open(path, framework="flax") as file:
            for name in file.keys():  # noqa: SIM118 (not a dict)
                array = file.get_tensor(name)
                if jnp.issubdtype(array.dtype, jnp.floating):
                    array = array.astype(jnp.float32)
                tensors[name] = np.asarray(array)
    return tensors


def _check_names(
    folder: pathlib.Path, tensors: Weights, rows: list[hf_names.Row], kind: str
) -> None:
    tied = hf_names.TIED[kind]
    expected = {name for row in rows for name in row.names}
    missing = sorted(expected - set(tensors))
    unexpected = sorted(set(tensors) - expected - set(tied))
    untied = [
        name
        for name, twin in tied.items()
        if name in tensors
        and twin in tensors
        and not np.array_equal(tensors[name], tensors[twin])
    ]
    lines = [f"missing: {name}" for name in missing]
    lines += [f"unexpected: {name}" for name in unexpected]
    lines += [
        f"should equal {tied[name]}, as heads are tied: {name}" for name in untied
    ]
    if lines:
        raise ValueError(
            f"The tensors in {folder} should be exactly those of {kind} as config.json "
            "describes it, but:\n  " + "\n  ".join(lines)
        )
