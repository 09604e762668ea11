"""The door of `stackformer.commands.dcf`."""

from stackformer.commands import start

if __name__ == "__main__":
    start.hello()

from stackformer.commands import cli
from stackformer.commands.dcf import main

if __name__ == "__main__":
    cli.run(main)
