import pytest

from t5x_lite.metrics.classification import entities, entity_f1, tag_accuracy


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        # seqeval's documentation and tests.
        ("B-PER I-PER O B-LOC", {("PER", 0, 1), ("LOC", 3, 3)}),
        ("O O O B-MISC I-MISC I-MISC O B-PER I-PER", {("MISC", 3, 5), ("PER", 7, 8)}),
        # IOB1: B stands between two neighbours of one type alone.
        ("I-PER I-PER O I-LOC I-PER", {("PER", 0, 1), ("LOC", 3, 3), ("PER", 4, 4)}),
        ("I-LOC B-LOC I-LOC", {("LOC", 0, 0), ("LOC", 1, 2)}),
        # Wrong beginnings: I after O, and I of another type.
        ("O I-PER", {("PER", 1, 1)}),
        ("B-PER I-LOC I-LOC", {("PER", 0, 0), ("LOC", 1, 2)}),
        # IOBES, and what goes wrong in it.
        ("B-PER I-PER E-PER S-LOC", {("PER", 0, 2), ("LOC", 3, 3)}),
        ("S-PER S-PER O E-LOC", {("PER", 0, 0), ("PER", 1, 1), ("LOC", 3, 3)}),
        ("B-PER E-PER I-PER E-PER", {("PER", 0, 1), ("PER", 2, 3)}),
        ("B-PER E-PER E-PER", {("PER", 0, 1), ("PER", 2, 2)}),
        ("B-PER S-PER E-PER", {("PER", 0, 0), ("PER", 1, 1), ("PER", 2, 2)}),
        # Types: with hyphens, and none.
        ("B-event-time I-event-time", {("event-time", 0, 1)}),
        ("B I O B", {("_", 0, 1), ("_", 3, 3)}),
        ("O O", set()),
        ("", set()),
    ],
)
def test_entities(tags, expected):
    assert entities(tags.split()) == expected


@pytest.mark.parametrize(
    ("targets", "predictions", "expected"),
    [
        # The example of seqeval's f1_score.
        (
            ["O O O B-MISC I-MISC I-MISC O", "B-PER I-PER O"],
            ["O O B-MISC I-MISC I-MISC I-MISC O", "B-PER I-PER O"],
            (0.5, 0.5, 0.5),
        ),
        (["B-NP I-NP O"], ["I-NP I-NP O"], (1.0, 1.0, 1.0)),  # seqeval's default mode
        (["B-PER O"], ["B-PER B-LOC"], (0.5, 1.0, 2 / 3)),
        (["B-PER B-LOC O"], ["B-PER O O"], (1.0, 0.5, 2 / 3)),
        (["B-PER"], ["B-LOC"], (0.0, 0.0, 0.0)),
        (["O O"], ["O O"], (0.0, 0.0, 0.0)),
        (["O"], ["B-PER"], (0.0, 0.0, 0.0)),
        # An entity does not go on in the next sentence.
        (["B-PER", "I-PER"], ["B-PER", "O"], (1.0, 0.5, 2 / 3)),
    ],
)
def test_f1_of_entities(targets, predictions, expected):
    found = entity_f1(targets, predictions)
    assert found == pytest.approx(dict(zip(("precision", "recall", "f1"), expected, strict=True)))


def test_accuracy_of_tags():
    assert tag_accuracy(["DT NN VBZ", "NN"], ["DT NN NN", "NN"]) == {"accuracy": 0.75}


@pytest.mark.parametrize("metric", [entity_f1, tag_accuracy])
def test_what_cannot_be_compared(metric):
    with pytest.raises(ValueError, match="a sentence has 2 tags, but 1 predicted tags"):
        metric(["O O"], ["O"])
    with pytest.raises(ValueError, match="1 targets and 0 predictions"):
        metric(["O"], [])
    with pytest.raises(ValueError, match="at least one target"):
        metric([], [])
