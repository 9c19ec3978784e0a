"""The heads of Hugging Face's encoders for tasks, in and out.

| head | class | bert | roberta, xlm-roberta | electra | deberta-v2 |
|---|---|---|---|---|---|
| classifier | *ForSequenceClassification | pooler, classifier | classifier.dense, .out_proj | as roberta | pooler, classifier |
| choice | *ForMultipleChoice | pooler, classifier | pooler, classifier | sequence_summary.summary, classifier | pooler, classifier |
| token | *ForTokenClassification | classifier | classifier | classifier | classifier |
| span | *ForQuestionAnswering | qa_outputs | qa_outputs | qa_outputs | qa_outputs |

The first layer of a classifier and of a choice has tanh, but in ELECTRA and DeBERTa gelu. Which head
a directory has is said by "architectures" of its config.json, or else by the names of its tensors.
Source: transformers/models/{bert,roberta,xlm_roberta,electra,deberta_v2}/modeling_*.py, 5.23.
"""  # noqa: E501

import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from t5x_lite.errors import InputError
from t5x_lite.heads.base import HEADS, Head
from t5x_lite.heads.choice import Choice
from t5x_lite.heads.classifier import Classifier, ClassifierKind, Problem
from t5x_lite.heads.span import Span
from t5x_lite.heads.token import Token
from t5x_lite.interop.rules import Rule

SUFFIXES = {
    "classifier": "ForSequenceClassification",
    "choice": "ForMultipleChoice",
    "token": "ForTokenClassification",
    "span": "ForQuestionAnswering",
}
"""Head -> end of the name of its class."""

_NO_NAME = re.compile(r"LABEL_\d+")
_OUT = ("classifier.out_proj.weight", "classifier.weight")

_logger = logging.getLogger(__name__)


def task_head(
    where: Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, Any],
    *,
    kinds: Mapping[str, ClassifierKind],
    dropout: str,
) -> Head | None:
    """The head for a task that a directory has; None where it has none.

    Args:
      where: its config.json, for messages.
      config: the content of that.
      tensors: the arrays by name.
      kinds: the kind of a "classifier" and of a "choice".
      dropout: the field of config.json that holds the head's rate.

    Raises:
      InputError: what it says of its classes is malformed.
    """
    name = _name(config, tensors)
    if name is None:
        return None
    if name == "span":
        return Span()
    rate = config.get(dropout)
    is_rate = isinstance(rate, int | float) and not isinstance(rate, bool) and 0 <= rate < 1
    if rate is not None and not is_rate:
        raise InputError(f"{where}: {dropout} must be a rate below 1 or null, got {rate!r}")
    options: dict[str, Any] = {"dropout_rate": None if rate is None else float(rate)}
    if name == "choice":
        return Choice(kind=kinds["choice"], **options)
    number = next((int(tensors[key].shape[0]) for key in _OUT if key in tensors), None)
    if number is None:
        raise InputError(f"{where}: a {SUFFIXES[name]} without the tensor classifier.weight")
    labels = labels_of(where, config, number)
    try:
        if name == "token":
            return Token(num_classes=number, labels=labels, **options)
        problem = problem_of(where, config, number)
        if problem == "multi_label_classification":
            _logger.warning(
                "%s: its classes do not exclude each other (problem_type); `evaluate` takes the "
                "likeliest class",
                where,
            )
        options |= {"kind": kinds["classifier"], "problem_type": problem}
        return Classifier(num_classes=number, labels=labels, **options)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error


def _name(config: Mapping[str, Any], tensors: Mapping[str, Any]) -> str | None:
    """The head by the name of the class, or else by those of the tensors."""
    classes = config.get("architectures")
    for architecture in classes if isinstance(classes, list) else ():
        for name, suffix in SUFFIXES.items():
            if isinstance(architecture, str) and architecture.endswith(suffix):
                return name
    starts = {tensor.partition(".")[0] for tensor in tensors}
    if "qa_outputs" in starts:
        return "span"
    if "sequence_summary" in starts:
        return "choice"
    if "classifier" not in starts:
        return None
    pooled = any("pooler.dense." in tensor for tensor in tensors)
    return "classifier" if pooled or "classifier.out_proj.weight" in tensors else "token"


def problem_of(where: Path, config: Mapping[str, Any], number: int) -> Problem:
    """Return the meaning of a classifier's logits; "auto" if it follows from their number.

    Raises:
      InputError: problem_type has an unknown value.
    """
    found = config.get("problem_type")
    if found is None:
        return "auto"
    known = get_args(Problem)[1:]
    if found not in known:
        raise InputError(
            f"{where}: problem_type {str(found)[:60]!r} is not supported; it must be one of "
            f"{', '.join(known)}, or null"
        )
    return "auto" if found == Classifier(num_classes=number).problem else found


def labels_of(where: Path, config: Mapping[str, Any], number: int) -> tuple[str, ...]:
    """The names of classes that id2label gives; none where it says LABEL_0 and so on, or nothing.

    Raises:
      InputError: they are not as many as the classes, or no names.
    """
    table = config.get("id2label")
    if table is None:
        stated = config.get("num_labels")
        if stated is not None and stated != number:
            raise InputError(
                f"{where}: num_labels is {repr(stated)[:60]}, and the weights have {number} classes"
            )
        return ()
    if not isinstance(table, dict) or not all(isinstance(each, str) for each in table.values()):
        raise InputError(f"{where}: id2label must be an object of names, got {str(table)[:60]!r}")
    wanted = {str(i) for i in range(number)}
    if {str(key) for key in table} != wanted:
        raise InputError(
            f"{where}: id2label has the classes {', '.join(list(table)[:8])}, and the weights "
            f"{number} classes, from 0"
        )
    labels = tuple(table[key] for key in sorted(table, key=int))
    if len(set(labels)) < len(labels):
        _logger.warning("%s: two classes have one name in id2label; they are left nameless", where)
        return ()
    return () if all(map(_NO_NAME.fullmatch, labels)) else labels


def task_config(head: Head | None, *, dropout: str) -> dict[str, Any]:
    """What a config.json says of a head for a task."""
    said: dict[str, Any] = {}
    if isinstance(head, Classifier | Token):
        labels = head.labels or tuple(f"LABEL_{i}" for i in range(head.num_classes))
        said["id2label"] = {str(i): label for i, label in enumerate(labels)}
        said["label2id"] = {label: i for i, label in enumerate(labels)}
    if isinstance(head, Classifier):
        said["problem_type"] = head.problem
    if isinstance(head, Classifier | Token | Choice) and head.dropout_rate is not None:
        said[dropout] = head.dropout_rate
    return said


def check_activation(head: Head | None, *, wanted: str, architecture: str) -> None:
    """Refuses a classifier whose first layer has another activation than transformers' class.

    Raises:
      InputError: with both.
    """
    if isinstance(head, Classifier | Choice) and head.activation != wanted:
        raise InputError(
            f"{architecture} of transformers has {wanted} in its head, and here it is "
            f"{head.activation} (head {head.kind!r})"
        )


def task_rules(head: Head | None, first: str, out: str) -> list[Rule]:
    """The rules of a head for a task.

    Args:
      head: the one.
      first: their name of the first layer, where there is one.
      out: their name of the last layer.
    """
    if head is None or head.name not in SUFFIXES:
        return []
    ours = f"{HEADS}{head.name}"
    layers = {f"{ours}/out": "qa_outputs" if head.name == "span" else out}
    if head.name in ("classifier", "choice"):
        layers[f"{ours}/dense"] = first
    return [
        rule
        for path, name in layers.items()
        for rule in (
            Rule(f"{path}/kernel", f"{name}.weight", transpose=True),
            Rule(f"{path}/bias", f"{name}.bias"),
        )
    ]
