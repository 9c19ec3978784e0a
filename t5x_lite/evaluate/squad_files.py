"""The files that SQuAD's own scripts take, and so does its server (evaluate-v1.1.py and -v2.0.py).

    predictions.json        {"56ddde6b9a695914005b9628": "France", ...}; "" is no answer
    null_odds.json          {"56ddde6b9a695914005b9628": -5.3, ...}, of SQuAD 2.0: --na-prob-file

The test split is hidden: files are of the split that was measured.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from t5x_lite.errors import InputError
from t5x_lite.files import write_atomically

FOLDERS = {"squad_squad": "squad_v1.1", "squad_squad_v2": "squad_v2.0"}
"""Task -> the folder of its files."""


def write(answers: Iterable[tuple[Mapping[str, Any], Any]], directory: Path) -> list[Path]:
    """Writes one file or both; each is there whole or not at all.

    Args:
      answers: of all questions, the fields of each, of which "id" is read, and the prediction as
        the metrics compare it: a text, or {"value": the text, "null_odds"}.
      directory: made if it is missing.

    Returns:
      The files.

    Raises:
      InputError: a file cannot be written.
    """
    texts: dict[str, str] = {}
    odds: dict[str, float] = {}
    for fields, answer in answers:
        if isinstance(answer, Mapping):
            texts[fields["id"]], odds[fields["id"]] = answer["value"], answer["null_odds"]
        else:
            texts[fields["id"]] = answer
    files = {"predictions.json": texts, **({"null_odds.json": odds} if odds else {})}
    for name, content in files.items():
        try:
            directory.mkdir(parents=True, exist_ok=True)
            write_atomically(directory / name, f"{json.dumps(content, indent=1)}\n".encode())
        except OSError as error:
            message = f"{directory / name}: cannot be written ({error.strerror})"
            raise InputError(message) from error
    return [directory / name for name in files]
