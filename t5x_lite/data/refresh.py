"""When hard negatives are looked for again, with the model that is being trained (ANCE).

    Data(..., refresh=Refresh(period=10_000, directory="work/retriever/refresh"))

Rows of the steps [k m, (k + 1) m), m the period, have negatives of the index of the checkpoint of
step (k - lag) m: the passages nearest to their queries, without the answers. Where that is 0 or
less they have those that the cache holds, of BM25 as a rule. So which negatives a step has does not
depend on how fast the search is: a run that is killed, or whose search is slow, has the same ones.

With batches by length (`shapes.Bucketed`) a row goes by the longest of the passages that are drawn
for it, new negatives included. Rows that wait for a full batch when a search takes effect are
sorted into buckets again.

Source: Xiong et al. 2021, "Approximate Nearest Neighbor Negative Contrastive Learning for Dense
Text Retrieval", section 4; there negatives are as new as the search just is.
"""

from dataclasses import dataclass
from typing import Any

from t5x_lite.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Refresh:
    """Negatives that `t5x-lite refresh` looks for while training goes on.

    Attributes:
      period: steps between two searches; 0 has none. Checkpoints must be saved at these steps.
      lag: so many periods are between the checkpoint that searches and the steps that use what it
        finds; with 0 training waits for each search.
      top: passages of a query that are kept; data.layout.negatives of them are drawn.
      directory: where the searches stand, WORKDIR/refresh as a rule.
    """

    period: int = 0
    lag: int = 1
    top: int = 200
    directory: str = ""

    def __post_init__(self):
        if self.period < 0 or self.lag < 0 or self.top < 1:
            raise InputError(
                "data.refresh: period and lag must not be negative, and top must be at least 1, "
                f"got {self.period}, {self.lag} and {self.top}"
            )
        if self.period and not self.directory:
            raise InputError(
                "data.refresh.period needs --data.refresh.directory, where `t5x-lite refresh` "
                "writes: WORKDIR/refresh as a rule"
            )

    def searched_by(self, number: int) -> int:
        """The step of the checkpoint that searches for a batch; 0 is the cache's own negatives.

        Args:
          number: of the batch, from 0.
        """
        return max(0, (number // self.period - self.lag) * self.period)

    def identity(self) -> dict[str, Any]:
        """What must be equal for a saved position in the data to fit, as JSON."""
        return {"refresh": [self.period, self.lag, self.top]} if self.period else {}
