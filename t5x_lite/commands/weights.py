"""Commands that exchange weights with other libraries: import, export."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar, Literal

from t5x_lite.commands.options import (
    Destination,
    Directory,
    Dtype,
    File,
    Number,
    OptionalCount,
    OptionalPooling,
    OptionalStep,
    OptionalText,
    Source,
    Text,
    at_least,
)
from t5x_lite.project import trusting_checkpoints


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImportHF:
    """Make a checkpoint of a directory of Hugging Face's transformers.

    Any T5, mT5, umT5 or ByT5; of encoders BERT, RoBERTa, XLM-R and ELECTRA.

    predict, score, evaluate, train --init and export take what it writes.

    Attributes:
      source: the directory: config.json, weights and tokenizer.
      destination: the directory to write; it must not exist yet.
      dtype: what the weights are stored in.
      sentinels: how predict and score read <extra_id_0>, </s> and the like in text: anywhere, as
        Hugging Face's tokenizer, or as seqio; of ByT5 also which ids the sentinels have.
      part: what the directory's usual files hold or, of a release of DeBERTaV3, the generator
        (pytorch_model.generator.bin).
    """

    source: Source
    destination: Destination
    dtype: Dtype = "keep"
    sentinels: Literal["hf", "seqio"] = "hf"
    part: Literal["model", "generator"] = "model"
    takes_overrides: ClassVar[bool] = False

    def run(self, _: Sequence[str]) -> None:
        """Calls run.interchange.import_hf."""
        from t5x_lite.run.interchange import import_hf

        import_hf(
            self.source,
            self.destination,
            dtype=self.dtype,
            sentinels=self.sentinels,
            part=self.part,
        )


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
        at_least(0, {"--extra-ids": self.extra_ids, "--step": self.step})

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
class ImportAdapter:
    """Make a checkpoint of a module that PEFT saved: LoRA, rsLoRA, DoRA or (IA)^3.

    It holds the module, and the head that came along, and names its base. predict, evaluate and
    train --adapters.load take it.

    Attributes:
      source: the directory: adapter_config.json and adapter_model.safetensors or .bin.
      destination: the directory to write; it must not exist yet.
      base: the model that it was trained on, a work directory or a step directory, as import hf
        writes.
      step: the step to take from a work directory, or best; the newest if not given.
      name: name of the module.
      trust_project: runs modules of yours that the base's config names; without it only classes of
        t5x_lite are admitted.
    """

    source: Source
    destination: Destination
    base: Directory
    step: OptionalStep = None
    name: Text = "adapter"
    trust_project: bool = False
    takes_overrides: ClassVar[bool] = False

    def __post_init__(self) -> None:
        at_least(0, {"--step": self.step})

    def run(self, _: Sequence[str]) -> None:
        """Calls run.adapter_interchange.import_adapter."""
        from t5x_lite.run.adapter_interchange import import_adapter

        with trusting_checkpoints(self.trust_project):
            import_adapter(
                self.source, self.destination, base=self.base, step=self.step, name=self.name
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportAdapter:
    """Write a module of a checkpoint as PEFT loads it, on the base that export hf writes.

    Attributes:
      source: a work directory or a step directory.
      destination: the directory to write; it must not exist yet.
      format: of the directory.
      step: the step to take from a work directory, or best; the newest if not given.
      name: of the module, where the checkpoint has several.
      no_head: leaves out the head that trained with it.
      trust_project: runs modules of yours that a checkpoint's config names; without it only classes
        of t5x_lite are admitted.
    """

    source: Source
    destination: Destination
    format: Literal["peft"] = "peft"
    step: OptionalStep = None
    name: OptionalText = None
    no_head: bool = False
    trust_project: bool = False
    takes_overrides: ClassVar[bool] = False

    def __post_init__(self) -> None:
        at_least(0, {"--step": self.step})

    def run(self, _: Sequence[str]) -> None:
        """Calls run.adapter_interchange.export_adapter."""
        from t5x_lite.run.adapter_interchange import export_adapter

        with trusting_checkpoints(self.trust_project):
            export_adapter(
                self.source,
                self.destination,
                form=self.format,
                step=self.step,
                name=self.name,
                head=not self.no_head,
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportHF:
    """Write a checkpoint of a T5 or an encoder as Hugging Face's transformers loads it.

    Attributes:
      source: a work directory or a step directory.
      destination: the directory to write; it must not exist yet.
      step: the step to take from a work directory, or best, the one that its run found best; the
        newest if not given.
      dtype: what the weights are stored in.
      part: the model or, if it was trained to detect replaced tokens, the generator that drew them.
      head: of an encoder with several heads, the one that is written: mlm, rtd, classifier, choice,
        token or span; none leaves all out. If not given, the one that its objective reads.
      sentence_transformers: whether SentenceTransformer loads the directory, too, with the vectors
        that embed gives; of an encoder, whose head is left out.
      pooling: of these vectors; if not given, what the checkpoint says, or else mean.
      normalize: whether they have length 1; if not given, what the checkpoint says, or else True.
      trust_project: runs modules of yours that a checkpoint's config names, as a class of your own
        model; without it only classes of t5x_lite are admitted.
    """

    source: Source
    destination: Destination
    step: OptionalStep = None
    dtype: Dtype = "keep"
    part: Literal["model", "generator"] = "model"
    head: OptionalText = None
    sentence_transformers: bool = False
    pooling: OptionalPooling = None
    normalize: bool | None = None
    trust_project: bool = False
    takes_overrides: ClassVar[bool] = False

    def __post_init__(self) -> None:
        at_least(0, {"--step": self.step})

    def run(self, _: Sequence[str]) -> None:
        """Calls run.interchange.export_hf."""
        from t5x_lite.run.interchange import export_hf

        with trusting_checkpoints(self.trust_project):
            export_hf(
                self.source,
                self.destination,
                step=self.step,
                dtype=self.dtype,
                part=self.part,
                head=self.head,
                sentence_transformers=self.sentence_transformers,
                pooling=self.pooling,
                normalize=self.normalize,
            )
