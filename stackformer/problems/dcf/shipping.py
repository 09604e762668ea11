"""Trained models that come with the package, one safetensors file each.

A file holds the parameters of one seed, and in its header the configuration of the run,
its commit and command, the seed and the scores.
"""

import json
import shlex
from importlib import resources
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx

from stackformer.extras import require
from stackformer.problems.dcf.config import OF_EVALUATION, DCFConfig, task_named
from stackformer.problems.dcf.problem import make_problem
from stackformer.problems.dcf.trained import TrainedModel, load_config, load_run
from stackformer.training.checkpoints import stamp
from stackformer.training.errors import UserError
from stackformer.training.loading import load_model, load_parameters
from stackformer.training.mesh import Placement
from stackformer.training.records import read_json

_SUFFIX = ".safetensors"
_SCORES = ("score", "score_hard", "string_score")


def folder() -> Path:
    """Where the shipped models lie."""
    return Path(str(resources.files("stackformer"))) / "trained"


def shipped() -> list[str]:
    """Names of the models that come with the package."""
    return sorted(path.stem for path in folder().glob(f"*{_SUFFIX}"))


def load(name: str | Path, seed: int | None = None) -> TrainedModel:
    """A trained model: one that comes with the package, or that of a run's folder.

    Args:
      name: "rs", "sm", "ma", "se", or with "-alm" behind it (`shipped()` lists what
        there is); or the `--out` of an `experiments.dcf` run. A `Path` is a folder.
      seed: which of the seeds of a run's folder; by default the first. A shipped model
        has the one that it was trained with.

    Example:
      >>> from stackformer.problems.dcf import shipped
      >>> {"rs", "ma"} <= set(shipped())
      True
      >>> load("rs").predict("abb")
      'bba'
    """
    if not isinstance(name, str | Path):
        kind = type(name).__name__
        raise TypeError(f"`name` should be a text or a path, but got a {kind}.")
    if isinstance(name, str) and name in shipped():
        if (Path(name) / "config.json").is_file():
            raise UserError(
                "`name` should be a model that comes with the package, or a folder, "
                f"but {name!r} is both here; write ./{name} for the folder"
            )
        return _read(folder() / f"{name}{_SUFFIX}", seed)
    if not str(name) or not Path(name).is_dir():
        raise UserError(
            f"`name` should be one of {', '.join(shipped())}, or the folder of a run, "
            f"but got {str(name)!r}"
        )
    return load_run(name, seed)


def facts(name: str) -> dict[str, Any]:
    """What a shipped model says of itself: configuration, seed, commit, scores."""
    return _facts(folder() / f"{name}{_SUFFIX}")


def _facts(path: Path) -> dict[str, Any]:
    safetensors = require("safetensors")
    try:
        with safetensors.safe_open(path, framework="np") as file:
            return json.loads(file.metadata()["stackformer"])
    except (safetensors.SafetensorError, TypeError, KeyError, ValueError) as error:
        raise _damaged(path, error) from None


def _damaged(path: Path, error: Exception) -> UserError:
    return UserError(
        f"{path} is damaged ({error}); install the package again, or write the file "
        "with `stackformer ship`"
    )


def save(run: Path | str, path: Path, *, seed: int, commit: str) -> dict[str, Any]:
    """Writes one seed of a finished run as a file to ship; returns its facts.

    Raises:
      UserError: the run is not finished, or its results are not those of its newest
        checkpoint.
    """
    config = load_config(run)
    problem = make_problem(config)
    model = load_model(run, problem, config.seeds, seed)
    written = read_json(Path(run) / "config.json")
    results = read_json(Path(run) / "results.json")
    params, step = load_parameters(run, problem, config.seeds, Placement.create())
    if results.get("fingerprint") != stamp(
        written, step, params, without=OF_EVALUATION
    ):
        raise UserError(
            f"{run}/results.json should be of the newest checkpoint, at step {step:,}, "
            f"but is of step {results.get('steps')}; give the run's command again"
        )
    (scored,) = (one for one in results["runs"] if one["seed"] == seed)
    about = {
        "config": config.to_json(),
        "command": _without_folder(written["command"]),
        "commit": commit,
        "seed": seed,
        "steps": results["steps"],
        "test_strings": results["test_strings"],
        "scores": {name: scored[name] for name in _SCORES if name in scored},
    }
    arrays = {name: np.asarray(x) for name, x in _flat(nnx.state(model)).items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    require("safetensors.numpy").save_file(
        arrays, path, metadata={"stackformer": json.dumps(about)}
    )
    path.chmod(0o644)
    return about


def _without_folder(command: str) -> str:
    """A command without the folder of the machine that it ran on."""
    words = shlex.split(command)
    return shlex.join(word for word in words if not word.startswith("--out="))


def _read(path: Path, seed: int | None) -> TrainedModel:
    about = _facts(path)
    if seed not in (None, about.get("seed")):
        raise UserError(f"{path.stem} is of the seed {about.get('seed')}, not {seed}")
    safetensors = require("safetensors")
    try:
        config = DCFConfig.from_json(about["config"])
        arrays = require("safetensors.numpy").load_file(path)
        problem = make_problem(config)
        abstract = nnx.state(nnx.eval_shape(lambda: problem.init(jax.random.key(0))))
        leaves = [jax.numpy.asarray(arrays[name]) for name in _flat(abstract)]
    except (safetensors.SafetensorError, KeyError, ValueError) as error:
        raise _damaged(path, error) from None
    state = jax.tree.unflatten(jax.tree.structure(abstract), leaves)
    return TrainedModel(
        nnx.merge(problem.graph, state), task_named(config.task), config
    )


def _flat(state: Any) -> dict[str, Any]:
    leaves, _ = jax.tree_util.tree_flatten_with_path(nnx.to_pure_dict(state))
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): leaf
        for path, leaf in leaves
    }
