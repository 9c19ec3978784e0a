"""The command that searches for hard negatives while a run goes on: refresh."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

from t5x_lite.commands.options import at_least
from t5x_lite.option_types import Count, FileTuple, SomeDirectory
from t5x_lite.options import OptionError
from t5x_lite.project import trusting_checkpoints


@dataclasses.dataclass(frozen=True, kw_only=True)
class Refresh:
    """Search for hard negatives with the checkpoints of a run that goes on (ANCE).

    For runs with --data.refresh.period. Which negatives a step has does not depend on how fast this
    is: training waits for a search that is late. It ends when no search is needed any more.

    Attributes:
      workdir: of the run.
      passages: files of the passages that are searched.
      batch_size: texts encoded at once.
      once: ends after the checkpoints that are there.
      trust_project: as for embed.
    """

    workdir: SomeDirectory
    passages: FileTuple
    batch_size: Count = 32
    once: bool = False
    trust_project: bool = False
    takes_overrides: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not self.passages:
            raise OptionError("--passages needs at least one file")
        at_least(1, {"--batch-size": self.batch_size})

    def run(self, _: Sequence[str]) -> None:
        """Calls run.refreshing.refresh."""
        from t5x_lite.run.refreshing import refresh

        with trusting_checkpoints(self.trust_project):
            refresh(
                self.workdir,
                passages=self.passages,
                batch_size=self.batch_size,
                once=self.once,
            )
