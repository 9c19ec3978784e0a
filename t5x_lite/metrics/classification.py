"""Metrics of classes (accuracy, F1), numbers (correlation) and tags (entities).

    accuracy([0, 1, 1, 1], [0, 1, 0, 1])        # {"accuracy": 0.75}

    macro_f1([0, 0, 1], [0, 1, 1])              # {"macro_f1": 2 / 3}
    table = ClassTable.of(("no", "yes"), [0, 0, 1], [0, 1, 1])
    print(table)                                # precision, recall and F1 of each class; confusions

T5 generates text, and text that matches no label becomes -1, which is wrong in all metrics. Macro
and weighted F1 and the table follow scikit-learn 1.5 (f1_score, precision_recall_fscore_support and
confusion_matrix with zero_division=0).

Numbers are compared by Pearson's and Spearman's coefficients, as in STS-B.

    pearson([1.0, 2.0, 3.0], [0.0, 1.0, 5.0])       # {"pearson_corrcoef": 0.9449...}

T5 generates a number as text; text that is not a number becomes -1 (t5/data/postprocessors.py,
string_to_float). A prediction that is not finite also counts as -1.

Tags are compared by precision, recall and F1 of entities, as in conlleval and seqeval.

    entities(["B-PER", "I-PER", "O", "I-LOC"])      # {("PER", 0, 1), ("LOC", 3, 3)}
    entity_f1(["B-PER O"], ["B-PER B-LOC"])         # {"precision": 0.5, "recall": 1.0, "f1": 2 / 3}

A tag is "O", or a letter and a type: "B-PER" begins an entity, "I-PER" continues it, "E-PER" ends
it, and "S-PER" is an entity of one word. An I or E that does not continue an entity of its type
begins a new entity. Therefore IOB1, IOB2 and IOBES need no option, and the first letter of a
predicted entity may be wrong. An entity is correct if its type and both of its ends are correct.

Sources: conlleval (Tjong Kim Sang and De Meulder 2003, cs.CL/0306050); seqeval 1.2.2,
metrics/sequence_labeling.py (get_entities, the default mode, micro average).
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, SupportsFloat

import numpy as np
from jaxtyping import Float64, Int


def accuracy(targets: Sequence[Any], predictions: Sequence[Any]) -> dict[str, float]:
    """Return {"accuracy": fraction of predictions that equal their targets}.

    Args:
      targets: labels of any type that supports ==.
      predictions: predicted labels, one for each target.
    """
    check_lengths(targets, predictions)
    equal = [bool(t == p) for t, p in zip(targets, predictions, strict=True)]
    return {"accuracy": sum(equal) / len(equal)}


def f1(targets: Sequence[int], predictions: Sequence[int]) -> dict[str, float]:
    """Return {"f1": F1 of class 1}, 2 TP / (2 TP + FP + FN), for two classes; 0 if undefined.

    Args:
      targets: 0 or 1.
      predictions: 0 or 1; any other value counts as the wrong class, as in T5's
        f1_score_with_invalid.

    Raises:
      ValueError: if the lengths differ or are 0, or a target is not 0 or 1.
    """
    check_lengths(targets, predictions)
    true, predicted = np.asarray(targets), np.asarray(predictions)
    if not np.isin(true, (0, 1)).all():
        raise ValueError(f"targets of F1 must be 0 or 1, but are {sorted(set(true.tolist()))}")
    predicted = np.where(np.isin(predicted, (0, 1)), predicted, 1 - true)
    return {"f1": _class_f1(true == 1, predicted == 1)}


def mean_multiclass_f1(
    targets: Sequence[int], predictions: Sequence[int], *, num_classes: int
) -> dict[str, float]:
    """Return {"mean_<C>class_f1": mean of the F1 of C classes}, CommitmentBank's metric.

    Args:
      targets: classes 0 .. num_classes - 1.
      predictions: predicted classes, one for each target; other values are wrong.
      num_classes: number of classes C; a class that does not occur has an F1 of 0.
    """
    check_lengths(targets, predictions)
    true, predicted = np.asarray(targets), np.asarray(predictions)
    scores = [_class_f1(true == c, predicted == c) for c in range(num_classes)]
    return {f"mean_{num_classes}class_f1": sum(scores) / num_classes}


def macro_f1(targets: Sequence[Any], predictions: Sequence[Any]) -> dict[str, float]:
    """Return {"macro_f1": mean F1 over the classes that occur}.

    Equals scikit-learn's f1_score(average="macro", zero_division=0, labels=classes except -1).

    Args:
      targets: class numbers or texts, or {"value": class} as in MultiRC. Examples with the target
        -1 (unknown) are skipped.
      predictions: predicted classes, one for each target; -1 is always wrong.
    """
    scores, _ = _class_scores(targets, predictions)
    return {"macro_f1": float(np.mean(scores)) if len(scores) else 0.0}


def weighted_f1(targets: Sequence[Any], predictions: Sequence[Any]) -> dict[str, float]:
    """Return {"weighted_f1": mean F1 over classes, weighted by the number of targets}.

    Equals scikit-learn's f1_score(average="weighted", zero_division=0, labels=classes except -1).
    """
    scores, support = _class_scores(targets, predictions)
    return {"weighted_f1": float(scores @ support / max(support.sum(), 1))}


CLASS_METRICS = {"macro_f1": macro_f1, "weighted_f1": weighted_f1}
"""Metrics for tasks with classes, by their names in `evaluation.class_metrics`."""


def _class_scores(
    targets: Sequence[Any], predictions: Sequence[Any]
) -> tuple[Float64[np.ndarray, " C"], Int[np.ndarray, " C"]]:
    check_lengths(targets, predictions)
    pairs = zip(values(targets), values(predictions), strict=True)
    known = [(true, predicted) for true, predicted in pairs if true != _UNKNOWN]
    classes = dict.fromkeys(one for pair in known for one in pair if one != _UNKNOWN)
    numbers = {_UNKNOWN: _UNKNOWN} | {one: number for number, one in enumerate(classes)}
    sides = [[numbers[pair[side]] for pair in known] for side in (0, 1)]
    table = ClassTable.of(tuple(classes), *sides)
    return table.scores()[2], table.support


def values(items: Iterable[Any]) -> list[Any]:
    """Return the field "value" of items that are mappings, and other items unchanged."""
    return [item["value"] if isinstance(item, Mapping) else item for item in items]


_UNKNOWN = -1
OTHER = "other"
"""Name of the column for predictions that are not a label."""
_CONFUSED, _SHOWN = 200, 12
"""Maximum numbers of classes in a confusion matrix, in files and as text."""


@dataclasses.dataclass(frozen=True)
class ClassTable:
    """Precision, recall and F1 of each class, and the confusion matrix.

    Attributes:
      labels: texts of the classes, in the order of the class numbers.
      hits: number of correct predictions of each class.
      support: number of targets of each class.
      predicted: number of predictions of each class.
      confusion: number of examples by target (rows) and prediction (columns); the last column
        counts predictions that are not a label. None for more than 200 classes.
    """

    labels: tuple[Any, ...]
    hits: Int[np.ndarray, " C"]
    support: Int[np.ndarray, " C"]
    predicted: Int[np.ndarray, " C"]
    confusion: Int[np.ndarray, "C C+1"] | None

    @classmethod
    def of(
        cls, labels: Sequence[Any], targets: Sequence[Any], predictions: Sequence[Any]
    ) -> "ClassTable":
        """Create the table from class numbers; examples without a valid target are skipped."""
        num = len(labels)
        true, predicted = (
            np.asarray(side, np.int64).reshape(-1) for side in (targets, predictions)
        )
        known = (true >= 0) & (true < num)
        true, predicted = true[known], predicted[known]
        predicted = np.where((predicted >= 0) & (predicted < num), predicted, num)
        support, found = (np.bincount(x, minlength=num + 1)[:num] for x in (true, predicted))
        hits = np.bincount(true[true == predicted], minlength=num)
        confusion = None
        if num <= _CONFUSED:
            confusion = np.zeros((num, num + 1), np.int64)
            np.add.at(confusion, (true, predicted), 1)
        return cls(tuple(labels), hits, support, found, confusion)

    def scores(self) -> Float64[np.ndarray, "3 C"]:
        """Return precision, recall and F1 of each class, as an array [3, classes]."""
        tops = np.stack([self.hits, self.hits, 2 * self.hits])
        bottoms = np.stack([self.predicted, self.support, self.predicted + self.support])
        return tops / np.maximum(bottoms, 1)

    def rows(self) -> dict[str, dict[str, float | int]]:
        """Return {"precision", "recall", "f1", "support"} by the name of each class and average.

        The macro average is over the classes that occur, as in `macro_f1`.
        """
        scores, total = self.scores(), int(self.support.sum())
        occurs = self.support + self.predicted > 0
        macro = scores[:, occurs].mean(axis=1) if occurs.any() else np.zeros(3)
        columns = [*scores.T, macro, scores @ self.support / max(total, 1)]
        names = [*map(str, self.labels), *AVERAGES]
        return {
            name: {**dict(zip(_SCORES, column.tolist(), strict=True)), "support": count}
            for name, column, count in zip(
                names, columns, [*self.support.tolist(), total, total], strict=True
            )
        }

    def to_json(self) -> dict[str, Any]:
        """Return {"classes", "averages", "confusion"} as a JSON object."""
        rows = self.rows()
        averages = {name: rows.pop(name) for name in AVERAGES}
        confusion = None if self.confusion is None else self.confusion.tolist()
        return {"classes": rows, "averages": averages, "confusion": confusion}

    def __str__(self) -> str:
        """Return the scores as a text table, followed by the confusions of up to 12 classes."""
        rows = [
            [name, *(f"{row[score]:.4f}" for score in _SCORES), f"{row['support']:,}"]
            for name, row in self.rows().items()
        ]
        shown = _aligned([["", *_SCORES, "support"], *rows])
        if self.confusion is None or len(self.labels) > _SHOWN:
            return shown
        heading = ["target, predicted:", *self.labels, OTHER]
        counts = zip(self.labels, self.confusion.tolist(), strict=True)
        return f"{shown}\n{_aligned([heading, *([label, *row] for label, row in counts)])}"


AVERAGES = ("macro average", "weighted average")
_SCORES = ("precision", "recall", "f1")


def _aligned(rows: Sequence[Sequence[Any]]) -> str:
    widths = [max(len(str(row[i])) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join([f"{row[0]!s:<{widths[0]}}", *map("{:>{}}".format, row[1:], widths[1:])])
        for row in rows
    )


def matthews(targets: Sequence[int], predictions: Sequence[int]) -> dict[str, float]:
    """Return {"matthews_correlation": value in [-1, 1]} of predicted and target classes.

    The value is 0 if all targets or all predictions have the same class. Sources: Matthews 1975 for
    two classes, Gorodkin 2004 ("Comparing two K-category assignments by a K-category correlation
    coefficient") for several.

    Args:
      targets: class numbers.
      predictions: predicted class numbers, one for each target; a number that does not occur in
        `targets` is a separate class.
    """
    check_lengths(targets, predictions)
    classes = np.unique(np.concatenate([targets, predictions]))
    true = np.asarray(targets)[:, None] == classes
    predicted = np.asarray(predictions)[:, None] == classes
    n = len(true)
    # Exact in integers: n^2 times the covariance of two one-hot assignments.
    by_class, by_prediction = true.sum(axis=0), predicted.sum(axis=0)
    covariance = int((true & predicted).sum()) * n - int(by_class @ by_prediction)
    spread = (n * n - int(by_class @ by_class)) * (n * n - int(by_prediction @ by_prediction))
    return {"matthews_correlation": covariance / spread**0.5 if spread else 0.0}


def check_lengths(targets: Sequence[Any], predictions: Sequence[Any]) -> None:
    """Raise ValueError unless there are targets and as many predictions as targets."""
    if len(targets) != len(predictions):
        raise ValueError(
            f"a metric needs one prediction for each target, but there are {len(targets)} "
            f"targets and {len(predictions)} predictions"
        )
    if len(targets) == 0:
        raise ValueError("a metric needs at least one target, but the targets are empty")


def _class_f1(true: np.ndarray, predicted: np.ndarray) -> float:
    hits = int((true & predicted).sum())
    found_and_wanted = int(true.sum()) + int(predicted.sum())
    return 2 * hits / found_and_wanted if found_and_wanted else 0.0


INVALID = -1.0
"""Value that replaces a prediction that is not a finite number."""


def pearson(
    targets: Sequence[SupportsFloat], predictions: Sequence[SupportsFloat]
) -> dict[str, float]:
    """Return {"pearson_corrcoef": Pearson's correlation in [-1, 1]}.

    The value equals scipy.stats.pearsonr's, or is 0 if all targets or all predictions are equal.

    Args:
      targets: finite numbers.
      predictions: predicted numbers, one for each target.

    Raises:
      ValueError: if the lengths differ or are 0, or a target is not finite.
    """
    from scipy import stats

    def scaled(*sides: np.ndarray) -> Any:
        # Squares of huge or tiny numbers would overflow or underflow.
        return stats.pearsonr(*(values / np.abs(values).max() for values in sides))

    return {"pearson_corrcoef": _coefficient(scaled, targets, predictions)}


def spearman(
    targets: Sequence[SupportsFloat], predictions: Sequence[SupportsFloat]
) -> dict[str, float]:
    """Return {"spearman_corrcoef": Spearman's rank correlation in [-1, 1]}.

    The value equals scipy.stats.spearmanr's, or is 0 if all targets or all predictions are equal.

    Args:
      targets: finite numbers.
      predictions: predicted numbers, one for each target.

    Raises:
      ValueError: if the lengths differ or are 0, or a target is not finite.
    """
    from scipy import stats

    return {"spearman_corrcoef": _coefficient(stats.spearmanr, targets, predictions)}


def _coefficient(
    function: Callable[..., Any],
    targets: Sequence[SupportsFloat],
    predictions: Sequence[SupportsFloat],
) -> float:
    true, predicted = _numbers(targets, predictions)
    if (true == true[0]).all() or (predicted == predicted[0]).all():
        return 0.0
    return float(function(true, predicted)[0])


def _numbers(
    targets: Sequence[SupportsFloat], predictions: Sequence[SupportsFloat]
) -> tuple[Float64[np.ndarray, " n"], Float64[np.ndarray, " n"]]:
    check_lengths(targets, predictions)
    true = np.array([float(value) for value in targets])
    if not np.isfinite(true).all():
        raise ValueError("targets of a correlation must be finite numbers")
    predicted = np.array([float(value) for value in predictions])
    return true, np.where(np.isfinite(predicted), predicted, INVALID)


Entity = tuple[str, int, int]
"""Type of an entity: its class, and the indices of its first and last word."""

_ENDS = {("B", "B"), ("B", "S"), ("B", "O"), ("I", "B"), ("I", "S"), ("I", "O")}
_BEGINS = {("E", "E"), ("E", "I"), ("S", "E"), ("S", "I"), ("O", "E"), ("O", "I")}
"""Letters of two adjacent tags between which an entity ends (_ENDS) or begins (_BEGINS)."""


def entities(tags: Sequence[str]) -> set[Entity]:
    """Return the entities in the tags of a sentence."""
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
    """Return {"precision", "recall", "f1"} over the entities of all sentences.

    Undefined values are 0.

    Args:
      targets: tags of each sentence, separated by spaces.
      predictions: predicted tags of each sentence, in the same form.
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
    """Return {"accuracy": fraction of words with the correct tag, over all sentences}.

    Args:
      targets: tags of each sentence, separated by spaces.
      predictions: predicted tags of each sentence, in the same form.
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
            raise ValueError(f"a sentence has {len(wanted)} tags, but {len(got)} predicted tags")
        found.append((wanted, got))
    return found
