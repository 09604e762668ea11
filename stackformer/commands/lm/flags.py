"""The flags of `experiments.lm`."""

import argparse

from stackformer.commands import cli, flags
from stackformer.problems.lm.config import LMConfig, size_values

DESCRIPTION = """\
Train GPT-2 or RoBERTa, with or without stacks, on WikiText-2 or Penn Treebank."""
EXAMPLES = [
    "python -m experiments.lm --task=alm --dataset=wikitext2 --data_dir=DIR",
    "python -m experiments.lm --task=mlm --dataset=ptb --data_dir=DIR --nostack",
    "python -m experiments.lm --task=alm --dataset=wikitext2 --data_dir=DIR \\",
    "    --pretrained=GPT2_DIR --stack_init=gated --tune_lr --seeds=0,1,2,3,4",
    "python -m experiments.lm --task=alm --dataset=wikitext2 --data_dir=DIR \\",
    "    --pretrained=GPT2_DIR --nostack --eval_only",
    'python -m experiments.lm --sample --out=RUN --prompt="The cat"',
    "python -m experiments.lm --task=alm --size=base --batch_size=1 --time_step",
]
VOCAB_SIZES = {"tiny": 512, "small": 2048, "base": 50257}


# Fields of the configuration that are flags, in two groups.
WHAT = ("task", "dataset", "size", "pretrained")
TRAINING = (
    *("learning_rate", "batch_size", "epochs", "patience", "steps"),
    *("validate_every", "seeds"),
)


def make_parser() -> argparse.ArgumentParser:
    """The flags, in groups."""
    parser = cli.parser("lm", DESCRIPTION, EXAMPLES)
    what = parser.add_argument_group("what is trained")
    defaults = {"size": "small", "learning_rate": "of the size"}
    defaults["batch_size"] = str(size_values("small")["batch_size"])
    flags.add_fields(what, LMConfig, WHAT, defaults=defaults, without=("pretrained",))
    what.add_argument(
        "--data_dir",
        metavar="DIR",
        help="your copy of the text: train.txt, valid.txt, test.txt (wikitext2) or "
        "ptb.train.txt and so on (ptb)",
    )
    what.add_argument(
        "--tokenizer",
        metavar="DIR",
        help="folder with tokenizer.json, or vocab.json and merges.txt; default: the "
        "one in --pretrained, else a byte-level BPE trained on the text",
    )
    what.add_argument(
        "--vocab_size",
        type=cli.positive,
        help="of a trained tokenizer; default: "
        + ", ".join(f"{n} ({size})" for size, n in VOCAB_SIZES.items()),
    )
    what.add_argument(
        "--packing",
        action="store_true",
        help="pack whole documents into chunks instead of cutting across them (the "
        "paper cuts); prints the share of padding",
    )
    stack = parser.add_argument_group("the stack")
    stack.add_argument("--nostack", action="store_true", help="the vanilla model")
    stack.add_argument(
        "--stack_init",
        choices=("plain", "gated"),
        default="plain",
        help="plain: H + S(H), the paper's (default); gated: H + g S(H) with a learned "
        "g per layer from 0, so that pretrained weights start with their own outputs",
    )
    stack.add_argument(
        "--stack_layers",
        type=cli.integers,
        metavar="0,1,...",
        help="blocks that get a stack, default all",
    )
    train = parser.add_argument_group("training")
    flags.add_fields(train, LMConfig, TRAINING, defaults=defaults)
    train.add_argument(
        "--tune_lr",
        action="store_true",
        help="train with each of the paper's 1e-5, 2e-5, 1e-4, 2e-4 (first seed) and "
        "take the best on the validation split",
    )
    train.add_argument(
        "--dropout",
        type=cli.number,
        help="rate; default 0.1, or what --pretrained says",
    )
    train.add_argument(
        "--dtype", choices=("float32", "bfloat16"), help="of products, default float32"
    )
    train.add_argument(
        "--remat", action="store_true", help="recompute blocks: less memory, more time"
    )
    run = flags.add_run_flags(parser, out="runs/lm", keep=2)
    run.add_argument(
        "--cache_dir", metavar="DIR", help="prepared text, default ~/.cache/stackformer"
    )
    other = parser.add_argument_group("instead of training")
    other.add_argument(
        "--eval_only",
        action="store_true",
        help="perplexities of the weights in --pretrained, or of the run in --out",
    )
    other.add_argument(
        "--save_chunks",
        action="store_true",
        help="write the validation and test chunks to chunks.npz in --out, to measure "
        "the very same tokens elsewhere",
    )
    other.add_argument(
        "--sample", action="store_true", help="continue --prompt with the run in --out"
    )
    other.add_argument("--prompt", default="", help="text to continue")
    other.add_argument(
        "--num_tokens", type=cli.positive, default=40, help="to sample, default 40"
    )
    other.add_argument(
        "--temperature", type=cli.number, default=0.8, help="0 is greedy, default 0.8"
    )
    other.add_argument(
        "--export",
        metavar="DIR",
        help="write the run in --out as a Hugging Face folder",
    )
    other.add_argument(
        "--seed", type=int, help="of the run's seeds, for --sample and --export"
    )
    other.add_argument(
        "--time_step",
        action="store_true",
        help="time and memory of one step on random tokens, with and without stacks",
    )
    return parser
