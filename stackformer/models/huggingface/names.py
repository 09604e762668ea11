"""How Hugging Face names and lays out the tensors of GPT-2 and RoBERTa.

One row per parameter: our path, their names, and how theirs becomes ours. A layout is
  "copy"       the same shape (GPT-2 keeps its matrices as (in, out), as we do);
  "transpose"  torch's Linear keeps (out, in);
several names are joined along our last axis (query, key, value). `{}` is the block.
"""

import dataclasses
import re
from typing import Literal

from stackformer.models.language.config import LanguageModelConfig
from stackformer.models.language.gpt2 import GPT2Config


@dataclasses.dataclass(frozen=True)
class Row:
    """One parameter: our path, their names, the layout."""

    path: str
    names: tuple[str, ...]
    layout: Literal["copy", "transpose"] = "copy"


def _row(path: str, *names: str, layout: Literal["copy", "transpose"] = "copy") -> Row:
    return Row(path, names, layout)


def _linear(path: str, *names: str) -> tuple[Row, Row]:
    weights = tuple(f"{name}.weight" for name in names)
    biases = tuple(f"{name}.bias" for name in names)
    return (
        _row(f"{path}.kernel", *weights, layout="transpose"),
        _row(f"{path}.bias", *biases),
    )


def _conv1d(path: str, name: str) -> tuple[Row, Row]:
    return (
        _row(f"{path}.kernel", f"{name}.weight"),
        _row(f"{path}.bias", f"{name}.bias"),
    )


def _norm(path: str, name: str) -> tuple[Row, Row]:
    return (
        _row(f"{path}.scale", f"{name}.weight"),
        _row(f"{path}.bias", f"{name}.bias"),
    )


_GPT2_MODEL = (
    _row("token_embedding.embedding", "transformer.wte.weight"),
    _row("position_embedding.embedding", "transformer.wpe.weight"),
    *_norm("final_norm", "transformer.ln_f"),
)
_GPT2_BLOCK = (
    *_norm("blocks.{}.attention_norm", "transformer.h.{}.ln_1"),
    *_conv1d("blocks.{}.attention.qkv", "transformer.h.{}.attn.c_attn"),
    *_conv1d("blocks.{}.attention.out", "transformer.h.{}.attn.c_proj"),
    *_norm("blocks.{}.feed_forward_norm", "transformer.h.{}.ln_2"),
    *_conv1d("blocks.{}.feed_forward.up", "transformer.h.{}.mlp.c_fc"),
    *_conv1d("blocks.{}.feed_forward.down", "transformer.h.{}.mlp.c_proj"),
)
_ROBERTA_MODEL = (
    _row("token_embedding.embedding", "roberta.embeddings.word_embeddings.weight"),
    _row(
        "position_embedding.embedding", "roberta.embeddings.position_embeddings.weight"
    ),
    _row("type_embedding.embedding", "roberta.embeddings.token_type_embeddings.weight"),
    *_norm("embedding_norm", "roberta.embeddings.LayerNorm"),
    *_linear("head_dense", "lm_head.dense"),
    *_norm("head_norm", "lm_head.layer_norm"),
    _row("head_bias", "lm_head.bias"),
)
_ROBERTA_LAYER = "roberta.encoder.layer.{}"
_ROBERTA_BLOCK = (
    *_linear(
        "blocks.{}.attention.qkv",
        f"{_ROBERTA_LAYER}.attention.self.query",
        f"{_ROBERTA_LAYER}.attention.self.key",
        f"{_ROBERTA_LAYER}.attention.self.value",
    ),
    *_linear("blocks.{}.attention.out", f"{_ROBERTA_LAYER}.attention.output.dense"),
    *_norm("blocks.{}.attention_norm", f"{_ROBERTA_LAYER}.attention.output.LayerNorm"),
    *_linear("blocks.{}.feed_forward.up", f"{_ROBERTA_LAYER}.intermediate.dense"),
    *_linear("blocks.{}.feed_forward.down", f"{_ROBERTA_LAYER}.output.dense"),
    *_norm("blocks.{}.feed_forward_norm", f"{_ROBERTA_LAYER}.output.LayerNorm"),
)
# What is ours, stacks and gates, keeps its own path behind this prefix.
OURS = "stackformer."

# Tensors that files on the hub carry and that hold nothing of the model: constant
# buffers, and a pooler that a masked language model does not have.
_IGNORED = {
    "gpt2": re.compile(r"transformer\.h\.\d+\.attn\.(masked_)?bias"),
    "roberta": re.compile(
        r"roberta\.(embeddings\.position_ids|pooler\.dense\.(weight|bias))"
    ),
}
# Tensors that must repeat another one, as the heads are tied.
TIED = {
    "gpt2": {"lm_head.weight": "transformer.wte.weight"},
    "roberta": {
        "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    },
}


def rows(config: LanguageModelConfig) -> list[Row]:
    """All rows of a model without its stacks.

    Example:
      >>> rows(GPT2Config(num_layers=1))[0].names
      ('transformer.wte.weight',)
    """
    if isinstance(config, GPT2Config):
        result, block = list(_GPT2_MODEL), _GPT2_BLOCK
    else:
        result, block = list(_ROBERTA_MODEL), _ROBERTA_BLOCK
    for layer in range(config.num_layers):
        for row in block:
            names = tuple(name.format(layer) for name in row.names)
            result.append(Row(row.path.format(layer), names, row.layout))
    return result


def full_name(kind: str, name: str) -> str:
    """The name with its prefix: GPT-2's own files on the hub leave it out."""
    prefixed = name.startswith(("transformer.", "lm_head.", OURS))
    return f"transformer.{name}" if kind == "gpt2" and not prefixed else name


def is_ignored(kind: str, name: str) -> bool:
    """Whether the tensor holds nothing of the model."""
    return _IGNORED[kind].fullmatch(name) is not None
