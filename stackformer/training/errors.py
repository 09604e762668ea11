"""Errors that a command shows without a stack trace."""


class UserError(ValueError):
    """A mistake that the user can mend: the message says what, and how to go on."""


class NonFiniteLossError(UserError):
    """The loss or the gradient became NaN or infinite; training was stopped."""


class Interrupted(Exception):
    """Training was asked to stop (SIGTERM, Ctrl-C) and has saved its state.

    Attributes:
      step: the step of the checkpoint that was written.
    """

    def __init__(self, step: int):
        super().__init__(f"stopped at step {step}")
        self.step = step
