"""config.json of the Hugging Face hub, read into and written from our own."""

import json
import pathlib
from typing import Any

from stackformer.models.language.config import LanguageModelConfig
from stackformer.models.language.gpt2 import GPT2Config
from stackformer.models.language.roberta import RobertaConfig
from stackformer.nn.stacks import stack_config

WEIGHTS_FILE = "model.safetensors"
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")


def read_config(
    folder: str | pathlib.Path, **overrides: Any
) -> GPT2Config | RobertaConfig:
    """The configuration in a Hugging Face folder, with changes."""
    found, path = _read_json(checked_folder(folder))
    kind = found.get("model_type")
    if kind not in ("gpt2", "roberta"):
        raise ValueError(
            f"`model_type` in {path} should be 'gpt2' or 'roberta', but got {kind!r}."
        )
    options = dict(found.get("stackformer", {}))
    read = _read_gpt2 if kind == "gpt2" else _read_roberta
    return read(found, path, {**options, **overrides})


def stack_fields(config: LanguageModelConfig) -> dict[str, Any] | None:
    """What a folder says of a model's stacks, under "stackformer" in config.json."""
    stack = stack_config(config.stack)
    if stack is None:
        return None
    layers = config.stack_layers
    return {
        "stack": stack.to_json(),
        "stack_layers": None if layers is None else list(layers),
        "stack_gate": config.stack_gate,
    }


def saved_stacks(folder: pathlib.Path) -> dict[str, Any] | None:
    """`stack_fields` of the model in a folder; None where it has no stacks."""
    return _read_json(folder)[0].get("stackformer")


def _read_json(folder: pathlib.Path) -> tuple[dict[str, Any], pathlib.Path]:
    path = folder / "config.json"
    if not path.is_file():
        raise ValueError(
            f"`pretrained` should be a Hugging Face folder, but {folder} has no "
            "config.json; download the whole folder of the model, for instance "
            "openai-community/gpt2 or FacebookAI/roberta-base."
        )
    return json.loads(path.read_text(encoding="utf-8")), path


def checked_folder(folder: str | pathlib.Path) -> pathlib.Path:
    """The folder, or an error that says what is wrong with it."""
    folder = pathlib.Path(folder)
    if folder.suffix in PICKLES:
        raise ValueError(pickle_message(folder))
    if not folder.is_dir():
        raise ValueError(
            f"`pretrained` should be a folder with config.json and {WEIGHTS_FILE}, but "
            f"got {str(folder)!r}, which is "
            + ("a file." if folder.exists() else "not there.")
        )
    return folder


def pickle_message(path: pathlib.Path) -> str:
    """Why a pickle is refused, and what to do."""
    return (
        f"{path} is a pickle file, and loading a pickle runs whatever code is in it. "
        f"Take {WEIGHTS_FILE} from the hub instead, or convert the file once where you "
        "trust it: in Python with transformers, "
        "AutoModelForCausalLM.from_pretrained(DIR).save_pretrained(DIR) "
        "(AutoModelForMaskedLM for RoBERTa) writes it."
    )


def _agreed(found: dict, path: pathlib.Path, expected: dict[str, Any]) -> None:
    """What config.json may only say in one way, or leave out."""
    for name, value in expected.items():
        if found.get(name, value) != value:
            raise ValueError(
                f"`{name}` in {path} should be {value!r}, the only kind that is "
                f"implemented, but got {found[name]!r}."
            )


def _read_gpt2(found: dict, path: pathlib.Path, overrides: dict) -> GPT2Config:
    _agreed(
        found,
        path,
        dict(
            activation_function="gelu_new",
            add_cross_attention=False,
            scale_attn_by_inverse_layer_idx=False,
            scale_attn_weights=True,
            tie_word_embeddings=True,
        ),
    )
    options = dict(
        vocab_size=found["vocab_size"],
        max_length=found.get("n_positions", found.get("n_ctx", 1024)),
        num_layers=found["n_layer"],
        d_model=found["n_embd"],
        num_heads=found["n_head"],
        d_ff=found.get("n_inner"),
        dropout=found.get("resid_pdrop", 0.1),
        embedding_dropout=found.get("embd_pdrop", 0.1),
        attention_dropout=found.get("attn_pdrop", 0.1),
        layer_norm_eps=found.get("layer_norm_epsilon", 1e-5),
    )
    return GPT2Config(**{**options, **overrides})


def _read_roberta(found: dict, path: pathlib.Path, overrides: dict) -> RobertaConfig:
    _agreed(
        found,
        path,
        dict(
            hidden_act="gelu",
            is_decoder=False,
            add_cross_attention=False,
            position_embedding_type="absolute",
            tie_word_embeddings=True,
        ),
    )
    pad_id = found.get("pad_token_id", 1)
    options = dict(
        vocab_size=found["vocab_size"],
        max_length=found["max_position_embeddings"] - pad_id - 1,
        num_layers=found["num_hidden_layers"],
        d_model=found["hidden_size"],
        num_heads=found["num_attention_heads"],
        d_ff=found["intermediate_size"],
        dropout=found.get("hidden_dropout_prob", 0.1),
        attention_dropout=found.get("attention_probs_dropout_prob", 0.1),
        layer_norm_eps=found.get("layer_norm_eps", 1e-12),
        pad_id=pad_id,
        token_types=found.get("type_vocab_size", 2),
    )
    return RobertaConfig(**{**options, **overrides})


def written_config(config: GPT2Config | RobertaConfig) -> dict[str, Any]:
    """What goes into config.json."""
    if isinstance(config, GPT2Config):
        written = dict(
            architectures=["GPT2LMHeadModel"],
            model_type="gpt2",
            activation_function="gelu_new",
            vocab_size=config.vocab_size,
            n_positions=config.max_length,
            n_layer=config.num_layers,
            n_embd=config.d_model,
            n_head=config.num_heads,
            n_inner=config.d_ff,
            resid_pdrop=config.dropout,
            embd_pdrop=config.embedding_rate,
            attn_pdrop=config.attention_rate,
            layer_norm_epsilon=config.layer_norm_eps,
        )
    else:
        if config.embedding_rate != config.dropout:
            raise ValueError(
                f"`embedding_dropout` should be `dropout`, {config.dropout}, in a "
                "folder of RoBERTa, whose config.json has one rate for both, but got "
                f"{config.embedding_rate}."
            )
        written = dict(
            architectures=["RobertaForMaskedLM"],
            model_type="roberta",
            hidden_act="gelu",
            vocab_size=config.vocab_size,
            max_position_embeddings=config.max_length + config.pad_id + 1,
            num_hidden_layers=config.num_layers,
            hidden_size=config.d_model,
            num_attention_heads=config.num_heads,
            intermediate_size=config.feed_forward,
            hidden_dropout_prob=config.dropout,
            attention_probs_dropout_prob=config.attention_rate,
            layer_norm_eps=config.layer_norm_eps,
            pad_token_id=config.pad_id,
            type_vocab_size=config.token_types,
        )
    written |= dict(tie_word_embeddings=True, dtype="float32")
    stacks = stack_fields(config)
    return written if stacks is None else {**written, "stackformer": stacks}
