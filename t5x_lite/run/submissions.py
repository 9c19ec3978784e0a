"""The files for the servers of GLUE and SuperGLUE, as `evaluate` writes them.

    submissions = Submissions(suite, settings)          # reads the test files, before any decoding
    submissions.write(directory, chosen)                # answers and writes; raises at its end

A test file that cannot be read costs its own task alone: a warning names it at the beginning, all
other files are written, and the command then ends in an error.
"""

import logging
from pathlib import Path

import jax

from t5x_lite.config import Evaluation
from t5x_lite.errors import InputError
from t5x_lite.evaluate.submission import FORMATS, Written, write
from t5x_lite.run.best import SameParams
from t5x_lite.run.task_suite import TaskSuite

_logger = logging.getLogger(__name__)


class Submissions:
    """What can be written for the tasks of a suite.

    Attributes:
      names: the tasks whose test files can be read, or are not there.
      faults: what is wrong with the others', by task.
    """

    def __init__(self, suite: TaskSuite | None, settings: Evaluation):
        """Reads the test files of all tasks, and warns of those that cannot be read."""
        self._suite = suite
        self.names: list[str] = []
        self.faults: dict[str, str] = {}
        if suite is None or not settings.submission:
            return
        parts = [name for name in suite.submittable() if not suite.is_whole(name)]
        if parts:
            all_of_them = len(parts) == len(suite.submittable())
            named = "" if all_of_them else f" of {', '.join(parts)}"
            _logger.info(
                "evaluation.max_examples is set: no files%s for the benchmarks' servers", named
            )
        for name in suite.submittable():
            if name in parts:
                continue
            try:
                suite.check_test(name)
            except InputError as error:
                self.faults[name] = str(error)
                _logger.warning("%s: no submission file will be written: %s", name, error)
            else:
                self.names.append(name)

    def files(self, directory: Path) -> list[Path]:
        """The files of these tasks that there are.

        Args:
          directory: as of `write`.
        """
        formats = [FORMATS[name] for name in self.names]
        paths = [directory / form.benchmark.lower() / form.file for form in formats]
        return [path for path in paths if path.is_file()]

    def write(self, directory: Path, chosen: SameParams) -> None:
        """Answers the test splits, on all processes, and writes the files on the first.

        Args:
          directory: gets a folder for each benchmark.
          chosen: the checkpoints with which tasks are answered.

        Raises:
          InputError: a file could not be written; all others are.
        """
        written, faults = 0, dict(self.faults)
        for name in sorted(self.names, key=chosen.step):
            assert self._suite is not None
            submission = FORMATS[name]
            try:
                answers = self._suite.answers(name, chosen(name))
                if answers is None or jax.process_index():
                    continue
                folder = directory / submission.benchmark.lower()
                _tell(write(submission, answers, folder), submission.rows)
            except InputError as error:
                faults[name] = str(error)
            else:
                written += 1
        if faults:
            raise InputError(_told(faults, written, directory))


def _told(faults: dict[str, str], written: int, directory: Path) -> str:
    """One line about the files that are missing."""
    files = [directory / FORMATS[name].benchmark.lower() / FORMATS[name].file for name in faults]
    old = [str(file) for file in files if file.exists()]
    reasons = "; ".join(f"{name}: {reason}" for name, reason in faults.items())
    total = len(faults) + written
    return f"{len(faults)} of {total} submission files could not be written ({reasons})" + (
        f"; of an earlier command, and still there: {', '.join(old)}" if old else ""
    )


def _tell(written: Written, official: int | None) -> None:
    _logger.info("wrote %s: %d rows", written.path, written.rows)
    if written.invalid:
        _logger.warning(
            "%s: %d predictions were not valid labels; the default (%s) was written instead",
            written.path,
            written.invalid,
            written.default,
        )
    if not written.official:
        _logger.warning(
            "%s has %d rows and the official test set %d: the server will not take it",
            written.path,
            written.rows,
            official,
        )
