"""Where the defaults of a run come from: its preset, task, model and kind of stack."""

from typing import Any

from stackformer.checks import check_choice
from stackformer.problems.dcf.config import PRESETS, task_named
from stackformer.training.errors import UserError

# Tasks whose strings have brackets, which the stack of frames evaluates.
BRACKETS = ("MA", "SE")


def preset_values(
    preset: str, task: str, model: str, stack: str | None = None
) -> dict[str, Any]:
    """Defaults of a preset for a task, a model and a kind of stack.

    `quick` takes what solves the task: for the stack transformer on MA and SE the stack
    of frames, elsewhere the paper's stack, made hard. `paper` is the paper's appendix,
    `smoke` is over in seconds.

    >>> preset_values("paper", "MA", "stack_transformer")["steps"]
    1000000
    >>> preset_values("quick", "MA", "stack_transformer")["stack"]
    'frames'
    """
    try:
        check_choice("preset", preset, PRESETS)
    except ValueError as error:
        raise UserError(str(error)) from None
    short = task_named(task).short_name
    if preset == "paper":
        return _paper(short)
    if preset == "smoke":
        return _smoke(model, stack)
    if model != "stack_transformer":
        return _quick(short)
    if stack is None:
        stack = "frames" if short in BRACKETS else "superposition"
    if stack == "frames":
        return {"stack": stack, **_frames(short)}
    hard = _hard(short) if stack == "superposition" else {}
    return {"stack": stack, **_quick(short), **hard}


def _paper(short: str | None) -> dict[str, Any]:
    long = short not in ("RS", "SM")
    return {
        "steps": 1_000_000 if long else 100_000,
        "batch_size": 128 if long else 32,
        "learning_rate": 1e-4,
    }


def _smoke(model: str, stack: str | None) -> dict[str, Any]:
    transformer = model in ("transformer", "stack_transformer")
    small: dict[str, Any] = {"d_model": 16, "num_layers": 2, "num_heads": 2}
    if stack == "frames":
        small |= {"item_features": 8, "hidden": 16}
    return {
        "steps": 20,
        "batch_size": 8,
        "learning_rate": 1e-3,
        "train_length": 6,
        "test_length": 12,
        "test_strings": 32,
        "steps_per_dispatch": 5,
        "train_buckets": 1,
        "test_buckets": 1,
        "model_config": small if transformer else {"hidden_size": 16},
    }


def _quick(short: str | None) -> dict[str, Any]:
    return {
        "steps": 1_000 if short == "RS" else 2_500,
        "batch_size": 32,
        "learning_rate": 3e-4,
        "schedule": "cooldown",
        "train_buckets": 3,
        "test_buckets": 4,
    }


def _hard(short: str | None) -> dict[str, Any]:
    """Where every seed has found the stack early, the rest of `quick` gains nothing."""
    steps = {"RS": {"steps": 500}, "SM": {"steps": 1_000}}
    return {"phases": "hard", **steps.get(short or "", {})}


def _frames(short: str | None) -> dict[str, Any]:
    """One layer without attention: the frame is all that an answer is read from."""
    model = {
        "attention": False,
        "learned_embedding": False,
        "stack_first": True,
        "num_layers": 1,
        "dropout": 0.0,
    }
    values = {
        "steps": 5_000,
        "batch_size": 256,
        "lengths_per_step": 8,
        "learning_rate": 2e-3,
        "warmup": 100,
        "weight_decay": 0.01,
        "schedule": "cooldown",
        "curriculum": "accuracy:0.95",
        "curriculum_start": 8,
        "train_buckets": 4,
        "test_buckets": 4,
        "steps_per_dispatch": 50,
    }
    if short in BRACKETS:
        model |= {"actions_from": "strings", "noise": 0.5, "hidden": 128}
        values |= {"balance": 1.0, "balance_steps": 1_000}
        values["steps"] = 3_000 if short == "MA" else 9_000
    return {**values, "model_config": model}
