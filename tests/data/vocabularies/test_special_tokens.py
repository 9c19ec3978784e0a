"""Special tokens anywhere in text, and the parts between them."""

import pytest

from t5x_lite.data.vocabularies.added_tokens import SpecialTokens

TOKENS = SpecialTokens({"<extra_id_0>": 99, "<extra_id_1>": 98})
STRIPPED = SpecialTokens({"<extra_id_0>": 99}, strip=True)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", []),
        (" ", [" "]),
        ("plain < text", ["plain < text"]),
        ("a<extra_id_0>b", ["a", 99, "b"]),
        ("<extra_id_0><extra_id_1>", [99, 98]),
        ("a <extra_id_1> ", ["a ", 98, " "]),
        ("a </s> b<pad><unk>", ["a ", 1, " b", 0, 2]),
        ("<extra_id_2><extra_id_00>", ["<extra_id_2><extra_id_00>"]),
        ("<<unk>>", ["<", 2, ">"]),
    ],
)
def test_split(text, parts):
    assert TOKENS.split(text) == parts


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a  </s>\n b", ["a", 1, "b"]),
        ("a <extra_id_0> b", ["a ", 99, " b"]),
        (" <pad> <extra_id_0> </s> ", [0, 99, 1]),
        ("</s> <unk>", [1, 2]),
    ],
)
def test_split_with_the_spaces_around(text, parts):
    assert STRIPPED.split(text) == parts


def test_the_parts_are_encoded_together():
    asked = []

    def plain(parts):
        asked.append(parts)
        return [[10 + len(part)] * 2 for part in parts]

    assert TOKENS.encode(["a<extra_id_0>bb", "", "ccc"], plain) == [
        [11, 11, 99, 12, 12],
        [],
        [13, 13],
    ]
    assert asked == [["a", "bb", "ccc"]]
