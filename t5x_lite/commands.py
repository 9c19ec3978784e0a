"""The commands of the command line: frozen dataclasses whose fields are the options.

No logic: `run` calls one function of `t5x_lite.run`, and imports it, and with it JAX, only then.
"""

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

import tyro

from t5x_lite.options import OptionError, option_names

PROG = "t5x-lite"

Config = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="CONFIG")]
Workdir = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="WORKDIR")]
Source = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="SRC")]
Destination = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DST")]
Directory = Annotated[str, tyro.conf.arg(metavar="DIR")]
Directories = Annotated[tuple[str, ...], tyro.conf.arg(metavar="DIR [DIR ...]")]
OptionalDirectory = Annotated[str | None, tyro.conf.arg(metavar="DIR")]
File = Annotated[str, tyro.conf.arg(metavar="FILE")]
Files = Annotated[tuple[str, ...], tyro.conf.arg(metavar="FILE [FILE ...]")]
OptionalFile = Annotated[str | None, tyro.conf.arg(metavar="FILE")]
Count = Annotated[int, tyro.conf.arg(metavar="N")]
OptionalCount = Annotated[int | None, tyro.conf.arg(metavar="N")]
Number = Annotated[float, tyro.conf.arg(metavar="X")]
OptionalNumber = Annotated[float | None, tyro.conf.arg(metavar="X")]
Text = Annotated[str, tyro.conf.arg(metavar="TEXT")]
LongInputs = Literal["cut", "refuse"]
Dtype = Literal["keep", "float32", "bfloat16"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Train:
    """Pretrain or fine-tune; goes on where the work directory's newest checkpoint ends.

    --FIELD VALUE after CONFIG changes a field of the config, such as --objective.z-loss 0;
    t5x-lite train CONFIG --help lists them.

    Attributes:
      config: a Python file that defines `experiment`, or the config.json of a work directory.
    """

    config: Config
    takes_overrides: ClassVar[bool] = True

    def run(self, overrides: Sequence[str]) -> None:
        """Calls run.training.train with the config's overrides."""
        from t5x_lite import config

        experiment = config.load(self.config, overrides, prog=f"{PROG} train {self.config}")
        from t5x_lite.run.training import train

        train(experiment)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluate:
    """Measure a checkpoint on a config's task: held-out loss and the task's metrics.

    --FIELD VALUE changes a field of the config, as for train. Of several checkpoints, an ensemble
    that averages their logits, the task's metrics alone are measured.

    Attributes:
      config: a Python file that defines `experiment`, or the config.json of a work directory.
      checkpoint: a work directory or a step directory; several are an ensemble.
      step: the step to take from a work directory; the newest if not given.
      output: where metrics.json and the predictions go; nowhere if not given.
    """

    config: Config
    checkpoint: Directories
    step: OptionalCount = None
    output: OptionalDirectory = None
    takes_overrides: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _some_directory(self.checkpoint)
        _at_least(0, {"--step": self.step})

    def run(self, overrides: Sequence[str]) -> None:
        """Calls run.measuring.evaluate with the config's overrides."""
        from t5x_lite import config

        experiment = config.load(
            self.config,
            overrides,
            prog=f"{PROG} train {self.config}",
            other_options=option_names(Evaluate),
        )
        from t5x_lite.run.measuring import evaluate

        evaluate(experiment, self.checkpoint, step=self.step, output=self.output)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Predict:
    """Answer inputs: JSON lines {"inputs"} to {"inputs", "prediction"}.

    Greedy, unless --num-beams or --temperature say otherwise. An empty input is its end alone. A
    command that is killed goes on where it stopped when it is given again.

    Attributes:
      checkpoint: a work directory or a step directory; several are an ensemble, which averages
        their logits.
      input: a file of JSON lines; - is standard input.
      output: the file to write; - is standard output.
      step: the step to take from a work directory; the newest if not given.
      prompt: what every prediction begins with; a line's own "prompt" takes its place.
      batch_size: inputs decoded at once.
      inputs_length: tokens of an input at most; the config's data.inputs_length if not given.
      long_inputs: whether longer inputs are cut, with a warning, or refused.
      max_decode_length: tokens of a prediction at most, those of its prompt not counted.
      num_beams: width of the beam search; 1 is none.
      length_rule: how beams of different lengths are compared: as T5X does it, or as transformers.
      length_penalty: exponent of that rule; 0.6 for t5x and 1.0 for hf if not given.
      early_stopping: of the rule hf: whether the search stops at num_beams outputs (True), when no
        beam seems better (False), or when none could become better (never).
      num_return: predictions of each input; above 1 a line gets "predictions", best first.
      temperature: samples, from the logits divided by it; 0 takes the likeliest token.
      top_k: samples among so many tokens only; 0 is all.
      top_p: samples among the likeliest tokens that together are so probable.
      min_p: samples among the tokens that are so probable, relative to the likeliest.
      seed: of the samples; what a line gets depends on it and on the line's number alone.
      min_length: tokens of a prediction at least.
      no_repeat_ngram: no sequence of so many tokens comes twice in a prediction; 0 allows it.
    """

    checkpoint: Directories
    input: File
    output: File
    step: OptionalCount = None
    prompt: Text = ""
    batch_size: Count = 32
    inputs_length: OptionalCount = None
    long_inputs: LongInputs = "cut"
    max_decode_length: Count = 64
    num_beams: Count = 1
    length_rule: Literal["t5x", "hf"] = "t5x"
    length_penalty: OptionalNumber = None
    early_stopping: bool | Literal["never"] = False
    num_return: Count = 1
    temperature: Number = 0.0
    top_k: Count = 0
    top_p: Number = 1.0
    min_p: Number = 0.0
    seed: Count = 0
    min_length: Count = 0
    no_repeat_ngram: Count = 0
    takes_overrides: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _some_directory(self.checkpoint)
        _at_least(
            0,
            {
                "--step": self.step,
                "--top-k": self.top_k,
                "--seed": self.seed,
                "--min-length": self.min_length,
                "--no-repeat-ngram": self.no_repeat_ngram,
            },
        )
        _at_least(
            1,
            {
                "--batch-size": self.batch_size,
                "--inputs-length": self.inputs_length,
                "--max-decode-length": self.max_decode_length,
                "--num-beams": self.num_beams,
                "--num-return": self.num_return,
            },
        )

    def run(self, _: Sequence[str]) -> None:
        """Calls run.answering.predict."""
        from t5x_lite.decoding.config import Decoding
        from t5x_lite.run.answering import predict

        decoding = Decoding(
            max_length=self.max_decode_length,
            **{name: getattr(self, name) for name in _SAME_IN_DECODING},
        )
        predict(
            self.checkpoint,
            step=self.step,
            input=self.input,
            output=self.output,
            prompt=self.prompt,
            batch_size=self.batch_size,
            inputs_length=self.inputs_length,
            long_inputs=self.long_inputs,
            decoding=decoding,
        )


_SAME_IN_DECODING = (
    "num_beams", "length_rule", "length_penalty", "early_stopping", "num_return", "temperature",
    "top_k", "top_p", "min_p", "seed", "min_length", "no_repeat_ngram",
)  # fmt: skip
"""Fields of Predict that `decoding.config.Decoding` has under the same name."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Score:
    """Log-likelihood of targets: JSON lines {"inputs", "targets"} get "log_likelihood".

    The log-likelihood is a sum over the targets' tokens and their end; "num_tokens" counts them. An
    empty input or target is its end alone. A command that is killed goes on where it stopped when
    it is given again.

    Attributes:
      checkpoint: a work directory or a step directory; several are an ensemble, which averages
        their logits.
      input: a file of JSON lines; - is standard input.
      output: the file to write; - is standard output.
      step: the step to take from a work directory; the newest if not given.
      candidates: a file with one candidate a line: lines {"inputs"} get "prediction", the likeliest
        of them, and "scores", the log-likelihood of each.
      batch_size: examples scored at once.
      inputs_length: tokens of an input at most; the config's data.inputs_length if not given.
      long_inputs: whether longer inputs are cut, with a warning, or refused.
    """

    checkpoint: Directories
    input: File
    output: File
    step: OptionalCount = None
    candidates: OptionalFile = None
    batch_size: Count = 32
    inputs_length: OptionalCount = None
    long_inputs: LongInputs = "cut"
    takes_overrides: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _some_directory(self.checkpoint)
        _at_least(0, {"--step": self.step})
        _at_least(1, {"--batch-size": self.batch_size, "--inputs-length": self.inputs_length})

    def run(self, _: Sequence[str]) -> None:
        """Calls run.answering.score."""
        from t5x_lite.run.answering import score

        score(
            self.checkpoint,
            step=self.step,
            input=self.input,
            output=self.output,
            candidates=self.candidates,
            batch_size=self.batch_size,
            inputs_length=self.inputs_length,
            long_inputs=self.long_inputs,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImportHF:
    """Make a checkpoint of a directory of Hugging Face's transformers: any T5, mT5, umT5 or ByT5.

    predict, score, evaluate, train --init and export take what it writes.

    Attributes:
      source: the directory: config.json, weights and tokenizer.
      destination: the directory to write; it must not exist yet.
      dtype: what the weights are stored in.
      sentinels: of a byte vocabulary: as Hugging Face's tokenizer reads <extra_id_0>, or as ByT5
        was pretrained with seqio.
    """

    source: Source
    destination: Destination
    dtype: Dtype = "keep"
    sentinels: Literal["hf", "seqio"] = "hf"
    takes_overrides: ClassVar[bool] = False

    def run(self, _: Sequence[str]) -> None:
        """Calls run.interchange.import_hf."""
        from t5x_lite.run.interchange import import_hf

        import_hf(self.source, self.destination, dtype=self.dtype, sentinels=self.sentinels)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImportT5X:
    """Make a checkpoint of one of T5X, in its own layout or Orbax's.

    predict, score, evaluate, train --init and export take what it writes.

    Attributes:
      source: a directory checkpoint_N, or the one above it.
      destination: the directory to write; it must not exist yet.
      vocabulary: a SentencePiece model, or "bytes" for ByT5; a checkpoint of T5X holds none.
      extra_ids: sentinels besides the model's own pieces; if not given 100, or 0 where it has some.
      step: which N; the newest if not given.
      dtype: what the weights are stored in.
      dropout_rate: of the model, for training on; a checkpoint of T5X does not say.
    """

    source: Source
    destination: Destination
    vocabulary: File
    extra_ids: OptionalCount = None
    step: OptionalCount = None
    dtype: Dtype = "keep"
    dropout_rate: Number = 0.1
    takes_overrides: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _at_least(0, {"--extra-ids": self.extra_ids, "--step": self.step})

    def run(self, _: Sequence[str]) -> None:
        """Calls run.interchange.import_t5x."""
        from t5x_lite.run.interchange import import_t5x

        import_t5x(
            self.source,
            self.destination,
            vocabulary=self.vocabulary,
            extra_ids=self.extra_ids,
            step=self.step,
            dtype=self.dtype,
            dropout_rate=self.dropout_rate,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportHF:
    """Write a checkpoint of a T5 as a directory that Hugging Face's transformers loads.

    Attributes:
      source: a work directory or a step directory.
      destination: the directory to write; it must not exist yet.
      step: the step to take from a work directory; the newest if not given.
      dtype: what the weights are stored in.
    """

    source: Source
    destination: Destination
    step: OptionalCount = None
    dtype: Dtype = "keep"
    takes_overrides: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _at_least(0, {"--step": self.step})

    def run(self, _: Sequence[str]) -> None:
        """Calls run.interchange.export_hf."""
        from t5x_lite.run.interchange import export_hf

        export_hf(self.source, self.destination, step=self.step, dtype=self.dtype)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Vocab:
    """Train a SentencePiece vocabulary on text, one document or sentence a line.

    Attributes:
      input: text files in UTF-8; - is standard input.
      output: the directory that receives sentencepiece.model.
      size: pieces of the vocabulary, without the sentinels.
    """

    input: Files
    output: Directory
    size: Count
    takes_overrides: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not self.input:
            raise OptionError("--input needs at least one file")
        _at_least(1, {"--size": self.size})

    def run(self, _: Sequence[str]) -> None:
        """Calls run.texts.vocab."""
        from t5x_lite.run.texts import vocab

        vocab(self.input, output=self.output, size=self.size)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """Write one HTML page about a work directory: curves, throughput, metrics, samples.

    Attributes:
      workdir: the work directory.
      output: the page to write; report.html in the work directory if not given.
    """

    workdir: Workdir
    output: OptionalFile = None
    takes_overrides: ClassVar[bool] = False

    def run(self, _: Sequence[str]) -> None:
        """Calls run.texts.report."""
        from t5x_lite.run.texts import report

        report(self.workdir, output=self.output)


COMMANDS: dict[str, Any] = {
    "train": Train,
    "evaluate": Evaluate,
    "predict": Predict,
    "score": Score,
    "import hf": ImportHF,
    "import t5x": ImportT5X,
    "export hf": ExportHF,
    "vocab": Vocab,
    "report": Report,
}


def _some_directory(directories: Sequence[str]) -> None:
    if not directories:
        raise OptionError("--checkpoint needs at least one directory")


def _at_least(minimum: int, values: dict[str, int | None]) -> None:
    """Raises OptionError for a value below the minimum."""
    for name, value in values.items():
        if value is not None and value < minimum:
            raise OptionError(f"{name} must be at least {minimum}, got {value}")
