"""Natural language inference as pairs: what a premise entails answers it, what contradicts it not.

    {"gold_label": "entailment", "sentence1": "A man plays.", "sentence2": "Someone plays."}
    {"gold_label": "contradiction", "sentence1": "A man plays.", "sentence2": "Nobody plays."}

become {"query": "A man plays.", "pos": ["Someone plays."], "neg": ["Nobody plays."]}. That is the
JSON of SNLI 1.0 and MultiNLI 1.0. Neutral sentences and those without a majority ("-") are left
out, and so is a premise that entails nothing; the order is that of the first sentence of each.

Source: Gao et al. 2021, "SimCSE", section 4; Bowman et al. 2015 and Williams et al. 2018 for files.
"""

import logging
from collections.abc import Sequence

from t5x_lite.buckets.paths import DataPath
from t5x_lite.errors import InputError
from t5x_lite.records import named_splits
from t5x_lite.records.json_lines import read_examples
from t5x_lite.records.pairs import Pairs

LABELS = ("entailment", "neutral", "contradiction", "-")
_EXPECTED = (
    '*train*.jsonl of SNLI or MultiNLI, objects with "gold_label", "sentence1" and "sentence2"'
)

_logger = logging.getLogger(__name__)


def splits(directory: str) -> tuple[str, ...]:
    """The splits that have files; see `split_files`."""
    return tuple(split_files(directory))


def read_pairs(directory: str, split: str) -> list[Pairs]:
    """The premises of a split; see `pairs_of`."""
    return pairs_of(split_files(directory)[split])


def split_files(directory: str) -> dict[str, list[DataPath]]:
    """The files of each split; see `named_splits`."""
    return named_splits.split_files(directory, suffix=".jsonl", expected=_EXPECTED)


def pairs_of(files: Sequence[DataPath]) -> list[Pairs]:
    """The premises of files that entail something; all files are one list of sentences.

    Raises:
      InputError: a file cannot be read, a line lacks a field or has another label.
    """
    answers: dict[str, tuple[list[str], list[str]]] = {}
    for file in files:
        for line in read_examples(str(file), fields=("gold_label", "sentence1", "sentence2")):
            label, premise, other = (
                line.record[name] for name in ("gold_label", "sentence1", "sentence2")
            )
            if label not in LABELS:
                raise InputError(
                    f'{line.where}: "gold_label" must be one of {", ".join(LABELS)}: got {label!r}'
                )
            if label in ("entailment", "contradiction"):
                both = answers.setdefault(premise, ([], []))
                own = both[label == "contradiction"]
                if other not in own:
                    own.append(other)
    found = [
        Pairs(premise, entailed, [text for text in against if text not in entailed])
        for premise, (entailed, against) in answers.items()
        if entailed
    ]
    if not found:
        raise InputError(f"{', '.join(map(str, files))}: no premise entails anything")
    _logger.info("%d premises, %d of which entail nothing", len(answers), len(answers) - len(found))
    return found
