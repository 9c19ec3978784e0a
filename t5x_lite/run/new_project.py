"""`t5x-lite init DIR`: a small project that trains at once.

    new_project("my_project")
    # my_project/README.md configs/ tasks/ data/text/ data/table/ vocabulary/

Nothing is downloaded: the text is the documentation that this Python installation carries, and the
table says of a part of it which package it documents.
"""

import contextlib
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from t5x_lite.data.tasks.python_docs import documents, labelled
from t5x_lite.interop.directories import new_directory
from t5x_lite.run.project_files import FILES, QUESTIONS, README
from t5x_lite.vocabulary.loading import ASCII, train_sentencepiece

PIECES = 4000
"""Of the vocabulary."""
_TEXT_BYTES = 6_000_000


def new_project(directory: str | Path) -> Path:
    """Writes a project, and returns its directory.

    Args:
      directory: must not exist, or be empty.

    Raises:
      InputError: it holds something, or cannot be written; nothing is left behind then.
    """
    with new_directory(directory) as root:
        for name, content in FILES.items():
            _write(root / name, content)
        name = Path(directory).absolute().name
        _write(root / "README.md", README.format(name=name))
        corpus = documents()
        texts = _within([document.text for document in corpus], _TEXT_BYTES)
        _write(root / "data/text/documents.txt", "".join(f"{text}\n" for text in texts))
        for split, rows in _table(labelled(corpus)).items():
            lines = (json.dumps({"text": text, "package": label}) for text, label in rows)
            _write(root / f"data/table/{split}.jsonl", "".join(f"{line}\n" for line in lines))
        asked = "".join(json.dumps({"inputs": text}) + "\n" for text in QUESTIONS)
        _write(root / "data/questions.jsonl", asked)
        _write(root / "data/questions.txt", "".join(f"{text}\n" for text in QUESTIONS))
        with contextlib.suppress(FileExistsError):
            (root / "vocabulary").mkdir()
        train_sentencepiece(texts, size=PIECES, output_dir=root / "vocabulary", required=ASCII)
    return Path(directory)


def _write(file: Path, content: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content, encoding="utf-8")


def _within(texts: Sequence[str], size: int) -> list[str]:
    """Texts of so many bytes at most, evenly chosen: those of every package stay."""
    total = sum(len(text.encode()) + 1 for text in texts)
    step = max(1.0, total / size)
    places = {int(number * step) for number in range(int(len(texts) / step))}
    return [text for place, text in enumerate(texts) if place in places]


def _table(pairs: Sequence[tuple[str, str]]) -> dict[str, list[tuple[str, str]]]:
    """Rows by split: a tenth for validation and a tenth for the test, by a hash of the text."""
    splits: dict[str, list[tuple[str, str]]] = {"train": [], "validation": [], "test": []}
    for text, label in pairs:
        place = hashlib.sha1(text.encode("utf-8", "surrogatepass")).digest()[0] % 10
        splits[{8: "validation", 9: "test"}.get(place, "train")].append((text, label))
    return splits
