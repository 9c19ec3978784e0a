"""Lines of a query, a passage that answers it and one that does not."""

import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.data.formats.pairs import Pairs, checked_triplet, from_json


def test_a_line():
    assert from_json(checked_triplet(" who \twrote it\tdid not", "a.tsv:1")) == Pairs(
        "who", ["wrote it"], ["did not"]
    )


@pytest.mark.parametrize("line", ["who\twrote it", "who\twrote it\t", "a\tb\tc\td", "\tb\tc"])
def test_a_line_without_three_texts(line):
    with pytest.raises(InputError, match=r"^a\.tsv:7: the line must be query TAB positive"):
        checked_triplet(line, "a.tsv:7")


@pytest.mark.parametrize(
    "line",
    [
        "query\tpositive\tnegative",
        "Query\tpos\tneg",
        "anchor\tpositive_passage\tnegative_passage",
        "query\tdoc_pos\tdoc_neg",
        '"query_text"\t"passage"\t"negative"',
    ],
)
def test_a_line_of_names_makes_no_row(line):
    assert checked_triplet(line, "a.tsv:1") == ""


@pytest.mark.parametrize("line", ["query\tpositive\tno", "queries\tpositive\tnegative"])
def test_a_line_with_other_words_makes_a_row(line):
    assert from_json(checked_triplet(line, "a.tsv:1")).query == line.split("\t")[0]
