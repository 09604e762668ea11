"""The door of `stackformer.commands.lm.command`."""

from stackformer.commands import start

if __name__ == "__main__":
    start.hello()

from stackformer.commands import cli
from stackformer.commands.lm.command import main

if __name__ == "__main__":
    cli.run(main)
