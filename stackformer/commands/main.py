"""`stackformer NAME`: every command behind one word."""

import importlib
import sys

from stackformer.commands import start

# name: (module with `main`, what it does)
COMMANDS = {
    "dcf": ("dcf", "train on a formal language, measure on longer strings"),
    "lm": ("lm.command", "train GPT-2 or RoBERTa with stacks on text"),
    "tables": ("tables.command", "run and report the paper's tables"),
    "tasks": ("tasks", "look at the strings of a task, freeze a test set"),
    "attention_maps": ("attention_maps", "look inside a trained run"),
    "benchmark": ("benchmark.command", "measure the library on this machine"),
    "ship": ("ship", "put a trained model into the package"),
    "compile": ("compile.command", "compile for a TPU or GPU that is not there"),
    "lm_table": ("tables.language", "a table of language-model runs"),
}


def main() -> None:
    """The console command: `stackformer NAME [flags]`."""
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in ("-h", "--help"):
        print(usage())
        return
    if name == "--version":
        import stackformer

        print(stackformer.__version__)
        return
    if name not in COMMANDS:
        print(
            f"error: the command should be one of {', '.join(COMMANDS)}, but got "
            f"{name!r}; see stackformer --help",
            file=sys.stderr,
        )
        sys.exit(2)
    sys.argv = [f"stackformer {name}", *sys.argv[2:]]
    start.hello()
    from stackformer.commands import cli

    module = importlib.import_module(f"stackformer.commands.{COMMANDS[name][0]}")
    cli.run(module.main)


def usage() -> str:
    """What `stackformer --help` prints.

    >>> usage().splitlines()[0]
    'usage: stackformer COMMAND [flags]'
    """
    lines = ["usage: stackformer COMMAND [flags]", "", "commands:"]
    lines += [f"  {name:<16}{text}" for name, (_, text) in COMMANDS.items()]
    lines += [
        "",
        "`stackformer COMMAND --help` shows the flags of a command, with examples.",
    ]
    return "\n".join(lines)
