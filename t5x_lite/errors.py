"""The two errors that the whole package shares, and what the system's errors say.

Importing them costs nothing (no JAX).
"""

import os
import re

_OS_ERROR_CODE = re.compile(r"os_error_code='(\d+)'")
"""How TensorStore's errors say the system's."""


_LONG_WORD = re.compile(r"\S{400,}")
_LONGEST = 4000
"""Characters of a message."""


def shortened(text: str, most: int = 60) -> str:
    """Return a text from outside as an error repeats it: at most 60 characters."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def shown(value: object, most: int = 60) -> str:
    """Return the repr of a value from outside, as an error repeats it: at most 60 characters."""
    if isinstance(value, str) and len(value) > most:
        return repr(f"{value[: most - 3]}...")
    try:
        return shortened(repr(value), most)
    except (RecursionError, ValueError):  # nested too deeply; a number of more than 4300 digits
        return f"a {type(value).__name__}"


class InputError(ValueError):
    """What the user gave is wrong: a config, a path, a data file, a vocabulary.

    The message is one line: what was wrong, where (file:line), and what to do. The command line
    prints it and exits with code 2. A word or a message far too long is cut, since it repeats what
    a file or an option holds.
    """

    def __init__(self, message: object = ""):
        text = _LONG_WORD.sub(lambda word: shortened(word[0]), str(message))
        super().__init__(shortened(text, _LONGEST))


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


def system_reason(error: BaseException) -> str | None:
    """What the system said when an error began there: "No space left on device".

    Args:
      error: an OSError, what was raised from one, or an error of TensorStore's.

    Returns:
      The system's text; None where the error has another cause.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno is not None:
            return cause.strerror
        code = _OS_ERROR_CODE.search(str(cause))
        if code is not None:
            return os.strerror(int(code.group(1)))
        cause = cause.__cause__ or cause.__context__
    return None


def line_of_file(error: BaseException) -> str | None:
    """One line about an error of the system's that names a file; None of any other error."""
    if not isinstance(error, OSError) or error.filename is None or not error.strerror:
        return None
    return f"{os.fsdecode(error.filename)}: {error.strerror}"
