"""Triplets of a query, a passage that answers it and one that does not, a line with tabs each.

    who wrote Emma TAB Jane Austen wrote Emma. TAB Emma Stone is an actress.

That is the form of MS MARCO's triples.train.small.tsv. Lines of one query are rows of their own. A
line of column names, such as query TAB positive TAB negative, is a header and makes no row.

Source: the README of microsoft/MSMARCO-Passage-Ranking.
"""

import re

from t5x_lite.errors import InputError
from t5x_lite.records.pairs import Pairs, to_json

_POSITIVE = r"pos(itive)?([-_ ]\w+)?|passage|\w+[-_ ]pos(itive)?"
_NEGATIVE = r"neg(ative)?([-_ ]\w+)?|\w+[-_ ]neg(ative)?"
_HEADER = re.compile(
    rf'"?(query|question|anchor)([-_ ]text)?"?\t"?({_POSITIVE})"?\t"?({_NEGATIVE})"?', re.IGNORECASE
)


def checked(line: str, where: str) -> str:
    """A line as `pairs.from_json` reads it; "" for a header.

    Args:
      line: without its end.
      where: its place, "file:line".

    Raises:
      InputError: it has no three texts.
    """
    texts = [text.strip() for text in line.split("\t")]
    if _HEADER.fullmatch("\t".join(texts)):
        return ""
    if len(texts) != 3 or not all(texts):
        raise InputError(
            f"{where}: must be a query, a passage that answers it and one that does not, with tabs "
            f"between them, got {line[:60]!r}"
        )
    query, positive, negative = texts
    return to_json(Pairs(query, [positive], [negative]))
