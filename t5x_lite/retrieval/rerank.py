"""The first places of a ranking in another order: that of a second, slower score.

    reranked(Ranking("q", ranked([("a", 9.0), ("b", 8.0), ("c", 7.0)])), [0.5, 2.5])
    # b 2.5, a 0.5, c -0.5: as many are in another order as have a score

The rest keeps its order, below the lowest of the new scores, by one a place: a run is then sorted
by its scores, too. Of equal scores the one that was first stays first.
"""

from collections.abc import Sequence

import numpy as np

from t5x_lite.records.run_files import Ranking, ranked


def reranked(ranking: Ranking, scores: Sequence[float]) -> Ranking:
    """A ranking of the same documents.

    Args:
      ranking: of the first stage.
      scores: of its first documents, in its order; not more than it has.
    """
    names = [one.document for one in ranking.documents]
    order = np.argsort(-np.array(scores, np.float64), kind="stable").tolist()
    first = [(names[place], float(scores[place])) for place in order]
    lowest = min(scores, default=0.0)
    rest = [(name, float(lowest) - place) for place, name in enumerate(names[len(first) :], 1)]
    return Ranking(ranking.query, ranked([*first, *rest]))
