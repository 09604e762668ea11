"""Look inside a trained run: stack attention maps, actions and the stack explorer.

    python -m experiments.attention_maps --out=runs/rs --input=abbaa --html

reads the newest checkpoint of an `experiments.dcf` run, sends one string through the
model, and leaves stack_attention.png and .svg (the paper's Figures 2-5) in the run's
folder. The most probable actions, and the stack that they produce, are printed.
"""

import argparse
import dataclasses
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from matplotlib.figure import Figure

from stackformer import models, tasks, viz
from stackformer.commands import cli
from stackformer.problems.dcf import TrainedModel, load, shipped
from stackformer.training.errors import UserError
from stackformer.training.progress import Progress
from stackformer.viz.explore import MAX_POSITIONS

EXAMPLES = [
    "python -m experiments.attention_maps --out=runs/rs",
    "python -m experiments.attention_maps --out=runs/rs --input=abbaa --layers=1,3",
    'python -m experiments.attention_maps --out=runs/sm --input="ab pop push_b" --html',
    'python -m experiments.attention_maps --out=ma --input="(3*(1+4))" --html',
]
# Tasks of which a bracket alone is a string, so that its value can be asked for.
_BRACKETS_ALONE = ("modular_arithmetic_brackets",)
# Models with a stack whose top is a distribution over positions.
_MODELS = ("stack_transformer", "stack_rnn", "stack_lstm")
# Symbols of a random string.
_LENGTH = 6
# Positions of a map that can still be read.
_MOST_POSITIONS = 1000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Replay:
    """What the stacks of a model did on one string; what `stackformer.viz` draws.

    Attributes:
      title: task, input and answer in a line.
      tokens: T short symbols, position 0 is the bottom of the stack.
      layers: 1-based numbers of the layers with a stack.
      weights: stack attention of those layers, (T, T) or (S, T, T) each.
      actions: action probabilities of those layers, (T, A) or (S, T, A) each.
      probabilities: (T, C) predicted probability of every class.
      symbols: C short symbols of the classes.
      predicted: (T,) bool, positions at which the model answers.
      targets: T right answers, None where nothing counts.
    """

    title: str
    tokens: list[str]
    layers: list[int]
    weights: list[np.ndarray]
    actions: list[np.ndarray]
    probabilities: np.ndarray
    symbols: list[str]
    predicted: np.ndarray
    targets: list[str | None]

    def titles(self) -> list[str]:
        """The name of every layer."""
        return [f"Layer {layer}" for layer in self.layers]

    def only(self, layers: tuple[int, ...]) -> "Replay":
        """The same with some of the layers."""
        missing = [layer for layer in layers if layer not in self.layers]
        if missing:
            raise UserError(
                f"--layers: no stack in layer {', '.join(map(str, missing))}; the "
                f"layers with a stack are {', '.join(map(str, self.layers))}"
            )
        keep = [self.layers.index(layer) for layer in layers]
        return dataclasses.replace(
            self,
            layers=list(layers),
            weights=[self.weights[k] for k in keep],
            actions=[self.actions[k] for k in keep],
        )

    def plot(self) -> Figure:
        """The maps with their actions."""
        return viz.plot_stack_attention(
            self.weights,
            self.tokens,
            actions=self.actions,
            titles=self.titles(),
            title=self.title,
        )

    def explore(self) -> viz.ExplorerPage:
        """The explorer's page."""
        return viz.explore(
            self.tokens,
            self.actions,
            probabilities=self.probabilities,
            symbols=self.symbols,
            targets=self.targets,
            predicted=self.predicted,
            titles=self.titles(),
            title=self.title,
        )

    def describe(self) -> str:
        """Answer, prediction, and for every stack the actions and the hard stack."""
        said = [self.symbols[c] for c in self.probabilities.argmax(axis=-1)]
        right = [t for t in self.targets if t is not None]
        pairs = zip(said, self.targets, strict=True)
        hits = sum(s == t for s, t in pairs if t is not None)
        answered = np.flatnonzero(self.predicted)
        lines = [
            self.title,
            f"  answer      {' '.join(right)}",
            f"  prediction  {' '.join(said[i] for i in answered)}   "
            f"({hits} of the {len(right)} that count are right)",
        ]
        for name, actions in zip(self.titles(), self.actions, strict=True):
            stacks = actions if actions.ndim == 3 else actions[None]
            for s, stack in enumerate(stacks):
                label = name if len(stacks) == 1 else f"{name}, stack {s + 1}"
                lines += ["", viz.describe_stack(self.tokens, stack, label)]
        return "\n".join(lines)


def replay(
    model: nnx.Module,
    task: tasks.Task,
    inputs: np.ndarray,
    mode: str,
    *,
    hard: bool = False,
) -> Replay:
    """Sends one string through a trained model and records what its stacks did.

    In mode "alm" the model reads its own answer, decoded greedily, as in evaluation.

    Args:
      model: a trained model with stacks, from `problems.dcf.load_run`.
      task: its task.
      inputs: (n,) indices into `task.input_symbols`, from `task.encode(text)`.
      mode: "mlm" or "alm".
      hard: the stacks take their most probable action.
    """
    inputs = np.asarray(inputs, np.int32)
    n, answer = inputs.size, task.answer(task.decode(inputs))
    counted = task.encode_output(answer).size
    outputs = task.solve(jnp.asarray(inputs)[None], n).astype(jnp.int32)
    width = outputs.shape[1]
    sample = tasks.Sample(
        inputs=jnp.asarray(inputs)[None],
        outputs=outputs,
        output_mask=jnp.arange(width)[None] < counted,
        length=jnp.asarray(n, jnp.int32),
    )
    framed = tasks.frame(task, sample, mode)
    tokens = framed.tokens
    if mode == "alm":
        own, _ = models.generate(
            model,
            tokens[:, : n + 2],
            jnp.full(1, n + 2, jnp.int32),
            width,
            output_tokens=task.output_tokens,
            hard=hard,
        )
        answered = dataclasses.replace(sample, outputs=own)
        tokens = tasks.frame(task, answered, mode).tokens
    graph, params = nnx.split(model)
    logits, aux = jax.jit(
        lambda params, tokens: nnx.merge(graph, params)(
            tokens, hard=hard, return_aux=True
        )
    )(params, tokens)
    layers = [k for k, w in enumerate(aux.stack_weights) if w is not None]
    if not layers:
        raise UserError("the model has no stack attention to look at")

    labels = viz.short_symbols(task.vocabulary[int(t)] for t in np.asarray(tokens)[0])
    weights = [np.asarray(aux.stack_weights[k])[0] for k in layers]
    actions = [np.asarray(aux.stack_actions[k])[0] for k in layers]
    probabilities = np.asarray(jax.nn.softmax(logits[0].astype(jnp.float32)))
    position = np.arange(tokens.shape[1])
    predicted = (position > n) & (position <= n + width)
    symbols = viz.short_symbols(task.output_symbols)
    classes, counts = np.asarray(framed.targets)[0], np.asarray(framed.target_mask)[0]
    targets = [symbols[c] if k else None for c, k in zip(classes, counts, strict=True)]
    if isinstance(model, models.RecurrentModel):
        # The bottom of these stacks lies before the first token: give it a position.
        labels = ["bottom", *labels]
        actions = [_noop_first(a) for a in actions]
        weights = [_top_of(a) for a in actions]
        probabilities = np.pad(probabilities, ((1, 0), (0, 0)))
        predicted, targets = np.pad(predicted, (1, 0)), [None, *targets]
    else:
        labels[0] = "bottom"
    return Replay(
        title=f"{task.name} ({mode}): {_short(task.decode(inputs))} → {_short(answer)}",
        tokens=labels,
        layers=[k + 1 for k in layers],
        weights=weights,
        actions=actions,
        probabilities=probabilities,
        symbols=symbols,
        predicted=predicted,
        targets=targets,
    )


def frames_of(trained: TrainedModel, record: Replay) -> list[viz.FrameStep]:
    """The frames of the first stack, with the values that the model itself reads.

    The value of a bracket depends on nothing outside it: it is what the model answers
    to the bracket alone, where that is a string of the task.
    """
    task, tokens = trained.task, ["B", *record.tokens[1:]]
    choice = viz.most_probable_actions(record.actions[0])
    steps = viz.frame_steps(tokens, choice)
    closed = {i: step.opened for i, step in enumerate(steps) if step.opened is not None}
    values: list[str | None] = [None] * len(steps)
    if task.name in _BRACKETS_ALONE and closed:
        alone = ["".join(tokens[a : i + 1]) for i, a in closed.items()]
        for i, said in zip(closed, trained.predict(alone), strict=True):
            values[i] = said
    return viz.frame_steps(
        tokens, choice, values, num_items=trained.model.config.stack.items
    )


def write_frames(
    steps: list[viz.FrameStep], record: Replay, folder: Path, *, page: bool
) -> None:
    """Prints the frames and writes their picture, and with `page` the replay."""
    print(viz.describe_frames(steps), end="\n\n")
    figure = viz.plot_frames(steps, title=record.title)
    for name in ("frames.png", "frames.svg"):
        figure.savefig(folder / name, dpi=150)
        print(f"wrote {folder / name}")
    if page:
        said = [record.symbols[c] for c in record.probabilities.argmax(axis=-1)]
        answer = " ".join(said[i] for i in np.flatnonzero(record.predicted))
        shown = viz.explore_frames(steps, title=record.title, answer=answer)
        print(f"wrote {shown.save(folder / 'frames_explorer.html')}")


def _noop_first(actions: np.ndarray) -> np.ndarray:
    first = np.zeros_like(actions[..., :1, :])
    first[..., viz.NOOP] = 1.0
    return np.concatenate([first, actions], axis=-2)


def _top_of(actions: np.ndarray) -> np.ndarray:
    if actions.ndim == 3:
        return np.stack([_top_of(one) for one in actions])
    return viz.depth_distribution(actions, depth=1)[:, 0]


def _short(text: str, limit: int = 48) -> str:
    return text if len(text) <= limit else f"{text[:limit]}…"


def choose_input(
    task: tasks.Task, text: str | None, length: int, seed: int
) -> np.ndarray:
    """The string to look at: as given, or a random one of the task."""
    if text is None:
        sample = task.sample(jax.random.key(seed), 1, length)
        return np.asarray(sample.inputs)[0, : int(sample.length)]
    try:
        inputs = task.encode(text)
        if inputs.size:
            task.check_form([task.input_symbols[i] for i in inputs])
    except ValueError as error:
        raise UserError(f"--input: {error}") from None
    if not inputs.size:
        raise UserError(
            f"--input should have symbols of {_alphabet(task)}, but got none"
        )
    return inputs


def _alphabet(task: tasks.Task) -> str:
    return ", ".join(task.input_symbols)


def make_parser() -> argparse.ArgumentParser:
    """The flags."""
    parser = cli.parser("attention_maps", (__doc__ or "").split("\n\n")[0], EXAMPLES)
    parser.add_argument(
        "--out",
        required=True,
        metavar="RUN",
        help="folder of a run of experiments.dcf, or a model that comes with the "
        f"package: {', '.join(shipped())}",
    )
    parser.add_argument("--seed", type=int, help="which of the run's seeds")
    string = parser.add_argument_group("the string")
    string.add_argument(
        "--input", help='such as abbaa, or "ab pop push_b"; default: a random one'
    )
    string.add_argument(
        "--length", type=cli.positive, help="of a random string, default 6"
    )
    string.add_argument(
        "--string_seed", type=cli.seed, help="which random string, default 0"
    )
    shown = parser.add_argument_group("what is shown")
    shown.add_argument(
        "--layers", type=cli.integers, help="such as 1,3; default: all with a stack"
    )
    shown.add_argument(
        "--actions",
        choices=("soft", "hard"),
        default="soft",
        help="mixed as in training, or the most probable ones; default soft",
    )
    shown.add_argument(
        "--html", action="store_true", help="write the stack explorer too"
    )
    shown.add_argument(
        "--save_to",
        metavar="DIR",
        help="where to write; default: the run's folder, "
        "maps/NAME for a model that comes with the package",
    )
    return parser


def check_input(flags: argparse.Namespace, trained: TrainedModel) -> np.ndarray:
    """The string that the flags ask for, or a `UserError` where it cannot be shown."""
    task, config = trained.task, trained.config
    if config.model not in _MODELS:
        raise UserError(
            f"{flags.out} holds a {config.model}, which has no stack whose top is a "
            f"position; train one of {', '.join(_MODELS)}"
        )
    length = flags.length or _LENGTH
    size = length if flags.input is None else len(flags.input)
    positions = 1 + size + int(task.output_length(size))
    if positions > _MOST_POSITIONS:
        raise UserError(
            f"{'--length' if flags.input is None else '--input'} should be shorter: a "
            f"map shows up to {_MOST_POSITIONS:,} positions, but got {positions:,} "
            "with the answer"
        )
    inputs = choose_input(task, flags.input, length, flags.string_seed or 0)
    positions = 1 + inputs.size + int(task.output_length(inputs.size))
    if flags.html and positions > MAX_POSITIONS:
        raise UserError(
            f"--html shows up to {MAX_POSITIONS} positions, but the string has "
            f"{positions} with its answer; give a shorter one"
        )
    return inputs


def main(argv: list[str] | None = None) -> int:
    """Runs the command."""
    flags = make_parser().parse_args(argv)
    if flags.layers and min(flags.layers) < 1:
        given = ",".join(map(str, flags.layers))
        raise UserError(f"--layers should count from 1, but got {given}")
    random = [n for n in ("length", "string_seed") if getattr(flags, n) is not None]
    if flags.input is not None and random:
        raise UserError(
            f"--{random[0]} should be given without --input, which is the string"
        )
    folder = cli.folder("--save_to", flags.save_to) if flags.save_to else None
    with Progress(enabled=sys.stderr.isatty()) as progress:
        progress.wait_for("reading the model")
        with cli.naming_flags(flags, name="--out"):
            trained = load(flags.out, flags.seed)
        inputs = check_input(flags, trained)
        progress.wait_for("compiling the model")
        hard, mode = flags.actions == "hard", trained.config.mode
        record = replay(trained.model, trained.task, inputs, mode, hard=hard)
        if flags.layers:
            record = record.only(flags.layers)
        default = Path("maps", flags.out) if flags.out in shipped() else flags.out
        folder = folder or cli.folder("--save_to, without it --out,", default)
        if trained.config.stack == "frames":
            frames = frames_of(trained, record)
        else:
            frames = None
            progress.wait_for("drawing")
            figure = record.plot()
            for name in ("stack_attention.png", "stack_attention.svg"):
                figure.savefig(folder / name, dpi=150)
    if frames is not None:
        write_frames(frames, record, folder, page=flags.html)
        return 0
    print(record.describe(), end="\n\n")
    for name in ("stack_attention.png", "stack_attention.svg"):
        print(f"wrote {folder / name}")
    if flags.html:
        print(f"wrote {record.explore().save(folder / 'stack_explorer.html')}")
    return 0
