"""The door of `stackformer.commands.tables.language`."""

from stackformer.commands import start

if __name__ == "__main__":
    start.hello()

from stackformer.commands import cli
from stackformer.commands.tables.language import main

if __name__ == "__main__":
    cli.run(main)
