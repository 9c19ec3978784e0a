"""XNLI's files (Conneau et al. 2018, arXiv:1809.05053), as tasks of GLUE's kind.

    XNLI-1.0/xnli.dev.tsv, xnli.test.tsv            columns language, gold_label, ...
    XNLI-MT-1.0/multinli/multinli.train.LANG.tsv    premise, hypo, label; "contradictory"

Columns are found by the header. Both splits of XNLI-1.0 have labels. TFDS has the held-out splits
as `xnli`, and other machine translations of MNLI, those of XTREME, as `xtreme_xnli`; a record there
holds all languages:

    {"premise": {"ar": ..., "bg": ...}, "hypothesis": {"language": ["ar", ...], "translation": ...}}
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from t5x_lite.buckets.paths import DataPath
from t5x_lite.data.tasks.benchmarks import Benchmark
from t5x_lite.data.tasks.glue_files import GlueTask
from t5x_lite.errors import InputError
from t5x_lite.records.benchmark_files import label_index, read_tsv

LANGUAGES = (
    "ar", "bg", "de", "el", "en", "es", "fr", "hi", "ru", "sw", "th", "tr", "ur", "vi", "zh",
)  # fmt: skip
EXAMPLES = 392_702
"""Pairs of MNLI's training file, and of each translation."""
_WORDS = ("entailment", "neutral", "contradiction")
_HELD_OUT = {"validation": "xnli.dev.tsv", "test": "xnli.test.tsv"}


@dataclass(frozen=True, kw_only=True)
class XnliTask(GlueTask):
    """One language.

    Attributes:
      language: of the held-out rows; a training file is of one language.
    """

    language: str = ""

    @classmethod
    def held_out(cls, language: str) -> "XnliTask":
        """Validation and test of a language."""
        return cls(
            name=language,
            directory="XNLI-1.0",
            template="hypothesis: {hypothesis} premise: {premise}",
            labels={word: word for word in _WORDS},
            prefix="xnli",
            columns={"hypothesis": "sentence2", "premise": "sentence1"},
            texts=("premise", "hypothesis"),
            label_column="gold_label",
            files=_HELD_OUT,
            language=language,
        )

    @classmethod
    def training(cls, language: str) -> "XnliTask":
        """MNLI's training pairs, translated."""
        return replace(
            cls.held_out(language),
            name=f"train_{language}",
            directory="XNLI-MT-1.0",
            columns={"hypothesis": "hypo", "premise": "premise"},
            label_column="label",
            files={"train": f"multinli/multinli.train.{language}.tsv"},
        )

    def benchmark(self) -> Benchmark:
        """The task, to be read from its files or from TFDS."""
        made = super().benchmark()
        labelled = made.labelled
        assert labelled is not None
        texts = tuple(partial(self.text, name) for name in self.texts)
        return replace(
            made,
            name=f"xnli_{self.name}",
            tfds="xtreme_xnli" if "train" in self.files else "xnli",
            labelled=replace(labelled, texts=texts),
        )

    def example(self, record: Mapping[str, Any], *, inputs: str | None = None) -> dict[str, Any]:
        """A record of a file or of TFDS as text; see `GlueTask.example`."""
        shown = {name: self.text(name, record) for name in self.columns}
        return super().example({**record, **shown}, inputs=inputs)

    def text(self, name: str, record: Mapping[str, Any]) -> str:
        """A field in the task's language.

        Args:
          name: "premise" or "hypothesis".
          record: of a file, which has the text, or of TFDS, which has those of all languages.

        Raises:
          InputError: the record of TFDS lacks the language.
        """
        value = record[name]
        if isinstance(value, str):
            return value
        found = (
            dict(zip(value["language"], value["translation"], strict=True))
            if "language" in value
            else value
        )
        if self.language not in found:
            raise InputError(
                f"TFDS's {self.benchmark().tfds}: a {name} has no text in {self.language!r}; "
                f"it has {', '.join(found)}"
            )
        return found[self.language]

    def records(self, file: DataPath, split: str) -> Iterator[dict[str, Any]]:
        """The records of the language.

        Raises:
          InputError: naming file and line, what `read_tsv` refuses or an unknown label; or the
            language has no row.
        """
        held_out = split != "train"
        named = ["language"] if held_out else []
        rows = read_tsv(file, columns=[*named, *self.columns.values(), self.label_column])
        number = 0
        for row in rows:
            if held_out and row.fields["language"] != self.language:
                continue
            fields = dict(row.fields)
            if fields[self.label_column] == "contradictory":
                fields[self.label_column] = "contradiction"
            yield {
                **{name: fields[column] for name, column in self.columns.items()},
                "label": label_index(row._replace(fields=fields), self.label_column, _WORDS),
                "idx": number,
            }
            number += 1
        if not number:
            raise InputError(f"{file}: no row of the language {self.language}")
