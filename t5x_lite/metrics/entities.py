"""Metrics of tags: entities by precision, recall and F1, as conlleval and seqeval count them.

    entities(["B-PER", "I-PER", "O", "I-LOC"])      # {("PER", 0, 1), ("LOC", 3, 3)}
    entity_f1(["B-PER O"], ["B-PER B-LOC"])         # {"precision": 0.5, "recall": 1.0, "f1": 2 / 3}

A tag is "O", or a letter and a type: "B-PER" begins an entity, "I-PER" goes on with it, "E-PER"
ends it, and "S-PER" is an entity by itself. An I or E begins one, too, where none of its type goes
on before it: so IOB1, IOB2 and IOBES are read alike, and what a model begins wrongly is an entity
all the same. An entity is right if its type and both of its ends are.

Sources: conlleval (Tjong Kim Sang and De Meulder 2003, cs.CL/0306050); seqeval 1.2.2,
metrics/sequence_labeling.py (get_entities, the default mode, micro average).
"""

from collections.abc import Sequence

from t5x_lite.metrics.classification import check_lengths

Entity = tuple[str, int, int]
"""Its type, its first word and its last."""

_ENDS = {("B", "B"), ("B", "S"), ("B", "O"), ("I", "B"), ("I", "S"), ("I", "O")}
_BEGINS = {("E", "E"), ("E", "I"), ("S", "E"), ("S", "I"), ("O", "E"), ("O", "I")}
"""Letters of two neighbours between which an entity ends, and those between which one begins."""


def entities(tags: Sequence[str]) -> set[Entity]:
    """The entities of a sentence.

    Args:
      tags: of its words.
    """
    found: set[Entity] = set()
    before, kind_before, first = "O", "", 0
    for place, tag in enumerate([*tags, "O"]):
        letter, kind = tag[:1], tag[1:].split("-", maxsplit=1)[-1] or "_"
        changes = kind != kind_before
        ends = before in "ES" or (before, letter) in _ENDS or (before not in "O." and changes)
        if ends:
            found.add((kind_before, first, place - 1))
        if letter in "BS" or (before, letter) in _BEGINS or (letter not in "O." and changes):
            first = place
        before, kind_before = letter, kind
    return found


def entity_f1(targets: Sequence[str], predictions: Sequence[str]) -> dict[str, float]:
    """Returns {"precision", "recall", "f1"} of the entities of all sentences together.

    What would be 0 / 0 is 0.

    Args:
      targets: the tags of each sentence, with spaces between them.
      predictions: as many.

    Raises:
      ValueError: there are no targets, not as many predictions, or not as many tags.
    """
    right = wanted = got = 0
    for target, prediction in _sentences(targets, predictions):
        ours, theirs = entities(prediction), entities(target)
        right, wanted, got = right + len(ours & theirs), wanted + len(theirs), got + len(ours)
    return {
        "precision": right / max(got, 1),
        "recall": right / max(wanted, 1),
        "f1": 2 * right / max(wanted + got, 1),
    }


def tag_accuracy(targets: Sequence[str], predictions: Sequence[str]) -> dict[str, float]:
    """Returns {"accuracy": the fraction of the words of all sentences whose tag is right}.

    Args:
      targets: the tags of each sentence, with spaces between them.
      predictions: as many.

    Raises:
      ValueError: there are no targets, not as many predictions, or not as many tags.
    """
    equal = [
        wanted == got
        for target, prediction in _sentences(targets, predictions)
        for wanted, got in zip(target, prediction, strict=True)
    ]
    return {"accuracy": sum(equal) / max(len(equal), 1)}


def _sentences(
    targets: Sequence[str], predictions: Sequence[str]
) -> list[tuple[list[str], list[str]]]:
    check_lengths(targets, predictions)
    found = []
    for target, prediction in zip(targets, predictions, strict=True):
        wanted, got = target.split(), prediction.split()
        if len(wanted) != len(got):
            raise ValueError(f"a sentence has {len(wanted)} tags, and {len(got)} are predicted")
        found.append((wanted, got))
    return found
