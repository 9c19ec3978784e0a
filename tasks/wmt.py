"""WMT's translation tasks as text-to-text: "translate English to German: <sentence>".

    --data.task tasks.wmt:ende --data.directory WMT

WMT contains ende/{train,validation,test}.en and the same files with .de, one sentence per line, or
is the folder ende; or it is a directory of TensorFlow Datasets (`t5x_lite.data.tasks.benchmarks`),
which downloads and prepares WMT's data. `ende`, `enfr` and `enro` are the tasks of the paper
(Raffel et al. 2020, section 2.3): WMT14 as filtered by tensor2tensor, WMT15 and WMT16. The metric
is BLEU.
"""

import dataclasses
from functools import partial
from typing import Any

import seqio

from t5x_lite.core.object_store import DataPath
from t5x_lite.data.config import TaskArguments
from t5x_lite.data.preprocessors import rewrite
from t5x_lite.data.tasks import benchmarks, text_source
from t5x_lite.data.tasks.benchmarks import Benchmark
from t5x_lite.data.tasks.names import Wording
from t5x_lite.metrics.text import bleu


@dataclasses.dataclass(frozen=True, kw_only=True)
class Translation:
    """Definition of one translation task: a direction and a year of WMT.

    Attributes:
      name: name of the task and of its folder.
      tfds: name of the data set in TFDS.
      source: code of the source language.
      target: code of the target language.
      prefix: beginning of the inputs.
    """

    name: str
    tfds: str
    source: str = "en"
    target: str
    prefix: str

    def benchmark(self) -> Benchmark:
        """Return the task as a `Benchmark`, which reads parallel files or TFDS."""
        inputs, targets = f"{self.prefix} {{{self.source}}}", f"{{{self.target}}}"
        return Benchmark(
            name=f"wmt_{self.name}",
            tfds=self.tfds,
            folder=self.name,
            files={split: f"{split}.{self.source}" for split in ("train", "validation", "test")},
            read=self._lines,
            examples=lambda record, split, inputs=inputs: [
                rewrite(record, inputs=inputs, targets=targets)
            ],
            extras={},
            metrics=(bleu,),
            wording=Wording(prefix=self.prefix, template=f"{{{self.source}}}"),
        )

    def _lines(self, file: DataPath, split: str) -> Any:
        files = {self.source: file, self.target: file.with_suffix(f".{self.target}")}
        if text_source.fit_in_memory([*files.values()]):
            return benchmarks.parallel_records(files)
        return benchmarks.parallel_lines(files)


TO_GERMAN, TO_FRENCH = "translate English to German:", "translate English to French:"
TO_ROMANIAN = "translate English to Romanian:"
ENDE = Translation(name="ende", tfds="wmt_t2t_translate/de-en", target="de", prefix=TO_GERMAN)
ENFR = Translation(name="enfr", tfds="wmt15_translate/fr-en", target="fr", prefix=TO_FRENCH)
ENRO = Translation(name="enro", tfds="wmt16_translate/ro-en", target="ro", prefix=TO_ROMANIAN)
ENDE_14 = dataclasses.replace(ENDE, name="ende_14", tfds="wmt14_translate/de-en")
ENFR_14 = dataclasses.replace(ENFR, name="enfr_14", tfds="wmt14_translate/fr-en")


def _task(row: Translation, arguments: TaskArguments) -> seqio.Task:
    return benchmarks.task(row.benchmark(), arguments)


ende = partial(_task, ENDE)
enfr = partial(_task, ENFR)
enro = partial(_task, ENRO)
ende_14 = partial(_task, ENDE_14)
enfr_14 = partial(_task, ENFR_14)
