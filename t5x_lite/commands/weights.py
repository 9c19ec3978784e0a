"""Commands that exchange weights with other libraries: import, export."""

import dataclasses
import os
from collections.abc import Sequence
from typing import ClassVar, Literal

from t5x_lite.commands.options import at_least
from t5x_lite.errors import InputError
from t5x_lite.option_types import (
    Destination,
    Directory,
    Dtype,
    File,
    Number,
    OptionalCount,
    OptionalFeedForward,
    OptionalPooling,
    OptionalStep,
    OptionalText,
    Repository,
    Source,
    Text,
)
from t5x_lite.project import trusting_checkpoints


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImportHF:
    """Import a model of Hugging Face's transformers: a directory, or a name at the hub.

    Any T5, mT5, umT5, Flan-T5, UL2 or ByT5; of encoders T5's (Sentence-T5, GTR), BERT, RoBERTa,
    XLM-R, ELECTRA and DeBERTa.

        t5x-lite import hf google/flan-t5-small work/flan

    predict, score, evaluate, train --init and export take what it writes.

    Attributes:
      source: the directory (config.json, weights and tokenizer), or ORG/NAME at the hub (extra
        hub); a directory of that name wins.
      destination: the directory to write; it must not exist yet.
      dtype: dtype of the stored weights.
      sentinels: reading of <extra_id_0>, </s> and the like in text by predict and score: anywhere,
        as Hugging Face's tokenizer does (hf), or as seqio does; for ByT5 also the sentinels' ids.
      part: the model, or the generator of a release of DeBERTaV3 (pytorch_model.generator.bin).
      revision: branch, tag or commit of a model at the hub; main if not given.
      skip_from: of a Condenser whose head is there (model.pt), the layer whose states the head
        reads; the paper has 6 of 12.
    """

    source: Source
    destination: Destination
    dtype: Dtype = "keep"
    sentinels: Literal["hf", "seqio"] = "hf"
    part: Literal["model", "generator"] = "model"
    skip_from: OptionalCount = None
    revision: OptionalText = None
    takes_overrides: ClassVar[bool] = False

    def __post_init__(self) -> None:
        at_least(0, {"--skip-from": self.skip_from})

    def run(self, _: Sequence[str]) -> None:
        """Calls run.interchange.import_hf."""
        from t5x_lite.run.interchange import import_hf

        import_hf(
            self.source,
            self.destination,
            dtype=self.dtype,
            sentinels=self.sentinels,
            part=self.part,
            skip_from=self.skip_from,
            revision=self.revision,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImportT5X:
    """Import a checkpoint of T5X, in its own layout or Orbax's.

    predict, score, evaluate, train --init and export take what it writes.

    Attributes:
      source: a directory checkpoint_N, or the one above it.
      destination: the directory to write; it must not exist yet.
      vocabulary: a SentencePiece model, or "bytes" for ByT5; a checkpoint of T5X holds none.
      extra_ids: sentinels besides the model's own pieces; if not given 100, or 0 where it has some.
      step: number N of the checkpoint; the newest if not given.
      dtype: dtype of the stored weights.
      dropout_rate: dropout rate for further training; a checkpoint of T5X does not record it.
      feed_forward: feed-forward block, which a checkpoint of T5X does not record; relu, or
        gated-gelu with a gate, if not given. UL2 has gated-silu.
    """

    source: Source
    destination: Destination
    vocabulary: File
    extra_ids: OptionalCount = None
    step: OptionalCount = None
    dtype: Dtype = "keep"
    dropout_rate: Number = 0.1
    feed_forward: OptionalFeedForward = None
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
            feed_forward=self.feed_forward,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImportAdapter:
    """Import a module of PEFT, of the library adapters or of composable-sft.

    It holds the module, and the head that came along, and names its base. predict, evaluate and
    train --adapters.load take it. The directories query/ and passage/ make a retriever of two
    encoders.

    Attributes:
      source: the directory (adapter_config.json and adapter_model.safetensors or .bin, of adapters
        adapter.safetensors or pytorch_adapter.bin; or pytorch_diff.bin), or ORG/NAME at the hub
        (extra hub); a directory of that name wins.
      destination: the directory to write; it must not exist yet.
      base: the model that it was trained on, a work directory or a step directory, as import hf
        writes.
      step: the step to take from a work directory, or best; the newest if not given.
      name: name of the module.
      revision: branch, tag or commit of a module at the hub; main if not given.
      trust_project: runs modules of yours that the base's config names; without it only classes of
        t5x_lite are admitted.
    """

    source: Source
    destination: Destination
    base: Directory
    step: OptionalStep = None
    name: Text = "adapter"
    revision: OptionalText = None
    trust_project: bool = False
    takes_overrides: ClassVar[bool] = False

    def __post_init__(self) -> None:
        at_least(0, {"--step": self.step})

    def run(self, _: Sequence[str]) -> None:
        """Calls run.adapter_interchange.import_adapter, or run.sft_interchange.import_sft."""
        from t5x_lite.run.adapter_interchange import import_adapter

        with trusting_checkpoints(self.trust_project):
            if os.path.isfile(os.path.join(self.source, "pytorch_diff.bin")):
                from t5x_lite.run.sft_interchange import import_sft

                import_sft(
                    *(self.source, self.destination),
                    base=self.base,
                    step=self.step,
                    name=self.name,
                )
                return
            import_adapter(
                self.source,
                self.destination,
                base=self.base,
                step=self.step,
                name=self.name,
                revision=self.revision,
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportAdapter:
    """Write a module of a checkpoint as another library loads it, on what export hf writes.

    Of a retriever with two encoders, it writes the directories query/ and passage/.

    Attributes:
      source: a work directory or a step directory; for sft also what compose wrote.
      destination: the directory to write; it must not exist yet.
      format: format of the directory: PEFT's; that of the library adapters, whose compositions are
        written, too; or composable-sft's pytorch_diff.bin of a sparse module or delta.
      step: the step to take from a work directory, or best; the newest if not given.
      name: name of the module, where the checkpoint has several.
      no_head: leaves out the head that trained with it.
      base_name: name at the hub or directory of the base that the config names; if not given, where
        the base was imported from.
      rank: rank of the LoRA that PEFT gets of a delta or composition, by a singular value
        decomposition; if not given, the exact sum of the ranks.
      trust_project: runs modules of yours that a checkpoint's config names; without it only classes
        of t5x_lite are admitted.
    """

    source: Source
    destination: Destination
    format: Literal["peft", "adapters", "sft"] = "peft"
    step: OptionalStep = None
    name: OptionalText = None
    no_head: bool = False
    base_name: OptionalText = None
    rank: OptionalCount = None
    trust_project: bool = False
    takes_overrides: ClassVar[bool] = False

    def __post_init__(self) -> None:
        at_least(0, {"--step": self.step})

    def run(self, _: Sequence[str]) -> None:
        """Calls run.adapter_interchange.export_adapter, or run.sft_interchange.export_sft."""
        from t5x_lite.run.adapter_interchange import export_adapter

        with trusting_checkpoints(self.trust_project):
            if self.format == "sft":
                from t5x_lite.run.sft_interchange import export_sft

                if self.name is not None:
                    raise InputError(
                        "--name is of one module: a file of sft is all that a delta changes"
                    )
                if self.rank is not None or self.base_name is not None:
                    raise InputError(
                        "--rank and --base-name are for PEFT's directories, and a file of sft "
                        "has neither"
                    )
                export_sft(self.source, self.destination, step=self.step, head=not self.no_head)
                return
            export_adapter(
                self.source,
                self.destination,
                form=self.format,
                step=self.step,
                name=self.name,
                head=not self.no_head,
                base_name=self.base_name,
                rank=self.rank,
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportHF:
    """Write a checkpoint of a T5 or an encoder as Hugging Face's transformers loads it.

    README.md there is a model card: task, base model, metrics, command, versions. The licence is
    left to you.

    Attributes:
      source: a work directory or a step directory.
      destination: the directory to write; it must not exist yet.
      step: the step to take from a work directory, or best, the one that its run found best; the
        newest if not given.
      dtype: dtype of the stored weights.
      part: the model or, if it was trained to detect replaced tokens, the generator that drew them.
      head: head of an encoder with several that is written: mlm, rtd, classifier, choice,
        token or span; none leaves all out. If not given, the one that its objective reads.
      sentence_transformers: whether SentenceTransformer loads the directory, too, with the vectors
        that embed gives; of an encoder, whose head is left out.
      pooling: pooling of these vectors; if not given, the checkpoint's, or else mean.
      normalize: whether they have length 1; if not given, the checkpoint's choice, or else True.
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Push:
    """Upload what export wrote to the Hugging Face Hub.

    The hub's own tools log in: hf auth login, or HF_TOKEN.

    Attributes:
      source: the exported directory.
      repository: ORG/NAME at the hub; it is made if it is missing.
      private: whether a repository that is made is private.
      message: message of the commit.
      dry_run: lists what would be uploaded, and sends nothing.
    """

    source: Source
    repository: Repository
    private: bool = False
    message: OptionalText = None
    dry_run: bool = False
    takes_overrides: ClassVar[bool] = False

    def run(self, _: Sequence[str]) -> None:
        """Calls run.pushing.push."""
        from t5x_lite.run.pushing import push

        push(
            self.source,
            self.repository,
            private=self.private,
            message=self.message,
            dry_run=self.dry_run,
        )
