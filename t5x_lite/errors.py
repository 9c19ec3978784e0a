"""The two errors that the whole package shares; importing them costs nothing (no JAX)."""


class InputError(ValueError):
    """What the user gave is wrong: a config, a path, a data file, a vocabulary.

    The message is one line: what was wrong, where (file:line), and what to do. The command line
    prints it and exits with code 2.
    """


class Interrupted(Exception):
    """Training was asked to stop by a signal, and stopped after saving.

    Attributes:
      signum: the signal's number; the command line exits with 128 + signum.
      step: the step that was saved; 0 where no step was taken, and nothing is saved.
    """

    def __init__(self, signum: int, step: int):
        when = f"after saving step {step}" if step else "before the first step; nothing is saved"
        super().__init__(f"stopped by signal {signum} {when}")
        self.signum = signum
        self.step = step
