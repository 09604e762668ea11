"""The door of `stackformer.commands.tasks`."""

from stackformer.commands import start

if __name__ == "__main__":
    start.hello()

from stackformer.commands import cli
from stackformer.commands.tasks import main

if __name__ == "__main__":
    cli.run(main)
