"""A checkpoint ready for use, or an ensemble: it generates, scores, encodes; and JSON lines.

Loaded checkpoint or ensemble, for generation, scoring, encoding and prediction.

    model = Checkpoint.load(["work/sst2"])
    rows, _ = model.inputs(["sst2 sentence: a moving and funny film"])
    predictions = model.predictions(model.generator(Decoding(), batch_size=32), rows)

    Checkpoint.load(["work/bert_sst2"]).answerer().run([{"inputs": "a funny film"}])
    Checkpoint.load(["work/ranker"]).pair_scorer().scores([("a query", "a passage")])
    Checkpoint.load(["work/retriever"]).encoder()       # vectors: inference.text_encoder

An ensemble averages the logits of its models, which share a vocabulary (Raffel et al. 2020, section
3.6). Inputs and targets end with EOS, so an empty text is encoded as a single EOS. There are two
exceptions. Inputs of a language model of plain text (data.layout LM()) have no EOS, because the
model continues them. If the layout has a separator, inputs end with the separator.

Processing of JSON lines by a checkpoint, for the commands predict and score.

Files of any size are processed in constant memory, in chunks of several batches. If input and
output are ordinary files, a killed command resumes after the last written chunk
(`t5x_lite.core.jobs`).

Inputs and targets above the maximum length are truncated, with a warning for the first text and the
total number at the end, or rejected.
"""

import contextlib
import dataclasses
import functools
import itertools
import logging
import math
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, overload

import numpy as np
from jax.sharding import Mesh

from t5x_lite.adapters.config import Adapters
from t5x_lite.checkpoints import reading as checkpointing
from t5x_lite.core.errors import InputError, shown
from t5x_lite.core.files import LONGEST_LINE
from t5x_lite.core.jobs import ResumableWriter, is_resumable, resumable_writer
from t5x_lite.core.options import did_you_mean
from t5x_lite.core.remote import AnyPath
from t5x_lite.core.trees import ComputeDtype, Params
from t5x_lite.core.workers import counting, waiting
from t5x_lite.data.config import Data
from t5x_lite.data.formats import lines as json_lines
from t5x_lite.data.formats.lines import Line, count_lines, read_lines
from t5x_lite.data.vocabularies.encoder_tokens import first_tokens
from t5x_lite.data.vocabularies.loading import Vocabulary
from t5x_lite.decoding.generate import Ensemble
from t5x_lite.decoding.sampling import Decoding
from t5x_lite.decoding.search import Preparation
from t5x_lite.inference.answers import (
    LONGEST_WINDOW,
    Answerer,
    Asked,
    answering_heads,
    head_for,
    kind_of,
)
from t5x_lite.inference.generate import Generator, Prediction, Ranker, Scorer
from t5x_lite.inference.loading import (
    Loaded,
    ModulesOf,
    Step,
    find_step,
    load_both,
    multi_task,
    position_bytes,
    read_experiment,
)
from t5x_lite.inference.pairs import CrossEncoder, HeadScorer
from t5x_lite.inference.text_encoder import TextEncoder
from t5x_lite.layouts.base import Layout
from t5x_lite.models.encoder import EncoderConfig, is_encoder
from t5x_lite.models.heads import Head
from t5x_lite.models.vector_heads import Pooling

_logger = logging.getLogger(__name__)


def find_steps(checkpoints: Sequence[AnyPath | str], *, step: Step = None) -> list[AnyPath]:
    """Return the checkpoint directories that `--checkpoint DIR [DIR ...]` selects.

    Raises:
      InputError: if no checkpoint is given, or a checkpoint does not exist.
    """
    if not checkpoints:
        raise InputError("no checkpoint directory is given; give at least one")
    return [find_step(checkpoint, step=step) for checkpoint in checkpoints]


def check_finite(where: str, what: str, *values: float) -> None:
    """Raise InputError if a value is NaN or infinite, which JSON cannot represent.

    Args:
      where: name of the input line or text that the values belong to.
      what: name of the values, such as "the score".
      *values: values to check.
    """
    if not all(math.isfinite(value) for value in values):
        raise InputError(
            f"{where}: {what} is NaN or infinite; check the checkpoint's weights, or use "
            "float32 as the compute dtype"
        )


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """Loaded checkpoint, or ensemble of checkpoints that is used like a single model.

    Attributes:
      members: loaded checkpoints; two or more form an ensemble.
      inputs_length: maximum number of tokens of an input.
      asked_length: maximum input length that the caller requested; None if not requested.
      mesh: device mesh of the parameters; None uses the first device.
      modules: adapters that input rows may select by name; None for an ensemble.
      names: names of the adapters that rows select by the ids 1, 2, ...; () if all rows use the
        same adapters.
    """

    members: tuple[Loaded, ...]
    inputs_length: int
    asked_length: int | None = None
    mesh: Mesh | None = None
    modules: ModulesOf | None = None
    names: tuple[str, ...] = ()

    @classmethod
    def load(
        cls,
        checkpoints: Sequence[AnyPath | str],
        *,
        step: Step = None,
        use: str | None = None,
        adapters: Sequence[str] = (),
        mesh: Mesh | None = None,
        inputs_length: int | None = None,
        compute_dtype: ComputeDtype | None = None,
    ) -> "Checkpoint":
        """Load a checkpoint, or several checkpoints as an ensemble.

        Args:
          checkpoints: work directories or checkpoint directories.
          step: step number in a work directory, "best", or None for the newest checkpoint.
          use: names or compositions of adapters to use; None uses the adapters of the run.
          mesh: device mesh of the parameters; None uses the first device.
          inputs_length: maximum number of tokens of an input; None uses the length in training.
          compute_dtype: data type of the activations; None uses the data type in training.
          adapters: NAME=DIR of additional adapters of the same base model, which input rows may
            select.

        Raises:
          InputError: if a checkpoint is invalid, or the checkpoints cannot form an ensemble.
        """
        if inputs_length is not None and inputs_length < 1:
            raise InputError(f"inputs_length must be at least 1, got {inputs_length}")
        directories = find_steps(checkpoints, step=step)
        loaded = [load_both(str(one), step=None, use=use, mesh=mesh) for one in directories]
        members = tuple(member.computing_in(compute_dtype) for member, _ in loaded)
        modules = loaded[0][1] if len(loaded) == 1 else None
        if adapters and modules is None:
            raise InputError(
                "adapters.load is not supported for several checkpoints (an ensemble); give a "
                "single --checkpoint"
            )
        for name, directory in Adapters(load=tuple(adapters)).loaded.items():
            assert modules is not None
            is_own = name in modules.adapters and find_step(directory) == directories[0]
            modules = modules if is_own else modules.adding(name, directory)
        for member in members[1:]:
            _check_together(members[0], member)
        trained = min(_inputs_length(member.experiment.data) for member in members)
        length = trained if inputs_length is None else inputs_length
        for member in members:
            member.experiment.data.layout.ending(member.vocabulary, length=length)
        return cls(members, length, inputs_length, mesh, modules)

    def by_row(self, names: Sequence[str | None] | None = None) -> "Checkpoint":
        """Return the model for batches in which rows have different adapters.

        Args:
          names: names of the adapters that get the ids 1, 2, ...; None uses all adapters. An entry
            of None is the base model without adapters.

        Raises:
          InputError: if this is an ensemble, or an adapter cannot differ between rows.
        """
        first, modules = self._only("does not support adapters; load one checkpoint"), self.modules
        assert modules is not None
        names = tuple(modules.adapters if names is None else names)
        member = modules.using((multi_task(first.learner.use, names),), by_row=True)
        learner = dataclasses.replace(member.learner, dtype=first.learner.dtype)
        member = dataclasses.replace(member, learner=learner)
        return dataclasses.replace(self, members=(member,), names=tuple(n or "" for n in names))

    def for_rows(
        self, names: Sequence[str | None], *, where: Sequence[str] = ()
    ) -> tuple["Checkpoint", list[int] | None]:
        """Return the model for rows with adapter names, and the adapter id of each row.

        Args:
          names: name of each row's adapter; a name of None selects the adapters that are in use by
            default.
          where: location of each row, such as "file:line", for error messages.

        Returns:
          The model and the adapter ids; this model and None if no row has an adapter name.

        Raises:
          InputError: if an adapter is unknown or cannot differ between rows.
        """
        if not any(names):
            return self, None
        known = () if self.modules is None else tuple(self.modules.adapters)
        for row, name in enumerate(names):
            if name and name not in known:
                has = f"there are {', '.join(known)}" if known else "there is none"
                raise InputError(
                    f"{f'{where[row]}: ' if where else ''}no adapter is called {shown(name)}"
                    f"{did_you_mean(name, known)}; {has}"
                )
        ids = [known.index(name) + 1 if name else 0 for name in names]
        return (self if self.names else self._by_row), ids

    @functools.cached_property
    def _by_row(self) -> "Checkpoint":
        return self.by_row()

    @property
    def vocabulary(self) -> Vocabulary:
        """Vocabulary of the model, or the common vocabulary of the ensemble's models."""
        return self.members[0].vocabulary

    @property
    def params(self) -> Params:
        """Parameter tree of the model, or of an ensemble: a dict of trees by member index."""
        if len(self.members) == 1:
            return self.members[0].params
        return {str(i): member.params for i, member in enumerate(self.members)}

    def bind(self, params: Params) -> Any:
        """Return the module of the model or ensemble for a parameter tree, in the compute dtype."""
        if len(self.members) == 1:
            return self.members[0].learner.bind_model(params)
        return Ensemble(
            [member.learner.bind_model(params[str(i)]) for i, member in enumerate(self.members)]
        )

    @functools.cached_property
    def preparation(self) -> Preparation:
        """Cache of the parameters prepared for decoding, shared by all generators."""
        return Preparation(self.bind)

    def generator(self, decoding: Decoding, *, batch_size: int) -> Generator:
        """Return a generator of predictions with the given decoding options.

        Raises:
          InputError: if a model is an encoder, which cannot generate text.
        """
        self._check_has("prefill", "generate text")
        return Generator(
            self.bind,
            self.vocabulary,
            batch_size=batch_size,
            decoding=decoding,
            preparation=self.preparation,
            position_bytes=sum(
                position_bytes(member.experiment.model, dtype=member.experiment.compute_dtype)
                for member in self.members
            ),
        )

    def scorer(self, *, batch_size: int) -> Scorer:
        """Return a scorer of the log-likelihoods of targets.

        Raises:
          InputError: if a model is an encoder, which cannot score targets.
        """
        self._check_has("target_logits", "score targets")
        return Scorer(self.bind, batch_size=batch_size)

    def answerer(
        self, *, batch_size: int = 32, head: str | None = None, asked: Asked | None = None
    ) -> Answerer:
        """Return a predictor that applies a head of an encoder to texts.

        Args:
          batch_size: number of rows per batch.
          head: name of the head; None selects the trained head, or the only head.
          asked: options of the predictions; None uses the defaults.

        Raises:
          InputError: if the head or an option of it is invalid, or this is an ensemble.
        """
        first = self._only("cannot predict with a head; give a single --checkpoint")
        experiment, data = first.experiment, first.experiment.data
        if not isinstance(experiment.model, EncoderConfig):
            raise InputError(
                f"checkpoint {first.directory}: {first.learner.model_type.__name__} generates "
                "text and has no heads; remove --head"
            )
        config = head_for(experiment, head, where=first.directory)
        most, length = experiment.model.longest_document, self.asked_length
        if length is None:
            length, _ = data.layout.pair_lengths(
                inputs=data.inputs_length, targets=data.targets_length
            )
            length = min(length, most or length)
            length = min(length, LONGEST_WINDOW) if kind_of(config) == "span" else length
        first.check_length(length, what="rows")
        return Answerer(
            config,
            bind=first.learner.bind,
            params=first.params,
            vocabulary=first.vocabulary,
            asked=asked or Asked(),
            length=length,
            batch_size=batch_size,
            where=first.directory,
            mesh=self.mesh,
        )

    @overload
    def pair_scorer(
        self, *, batch_size: int = 32, query_length: int | None = None
    ) -> CrossEncoder: ...

    @overload
    def pair_scorer(
        self,
        *,
        heads: Sequence[str],
        weights: Sequence[float] = (1.0, 1.0, 1.0),
        batch_size: int = 32,
        query_length: int | None = None,
    ) -> CrossEncoder | HeadScorer: ...

    def pair_scorer(
        self,
        *,
        heads: Sequence[str] = (),
        weights: Sequence[float] = (1.0, 1.0, 1.0),
        batch_size: int = 32,
        query_length: int | None = None,
    ) -> CrossEncoder | HeadScorer:
        """Return a scorer of query-passage pairs.

        Args:
          heads: heads of a BGE-M3 model, to use the weighted mean of their scores; () for a
            cross-encoder.
          weights: weights of the dense, lexical and multi-vector scores.
          batch_size: number of pairs per batch; with heads, number of texts per batch.
          query_length: maximum number of tokens of a query; None uses the length in training.

        Raises:
          InputError: if the checkpoint has no such head, or this is an ensemble.
        """
        first = self._only("cannot score query-passage pairs; load a single checkpoint")
        options: dict[str, Any] = {"batch_size": batch_size, "query_length": query_length}
        if heads:
            encoder = TextEncoder.of(first, mesh=self.mesh, length=self.asked_length)
            return HeadScorer.of(encoder, heads, weights=weights, **options)
        return CrossEncoder.of(first, length=self.asked_length, mesh=self.mesh, **options)

    def _only(self, why: str) -> Loaded:
        first, *others = self.members
        if others:
            raise InputError(f"an ensemble {why}")
        return first

    def encoder(
        self,
        *,
        pooling: Pooling | None = None,
        normalize: bool | None = None,
        dimensions: int | None = None,
    ) -> TextEncoder:
        """Return the encoder of texts into vectors.

        Args:
          pooling: "cls" or "mean"; None uses the checkpoint's setting, or "mean" with a warning.
          normalize: True to scale vectors to length 1; None uses the checkpoint's setting, or True.
          dimensions: number of leading dimensions to keep of each vector; None keeps all.

        Raises:
          InputError: if this is an ensemble, or the model has no encoder.
        """
        first = self._only("cannot encode texts into vectors; load a single checkpoint")
        return TextEncoder.of(
            first,
            mesh=self.mesh,
            length=self.asked_length,
            pooling=pooling,
            normalize=normalize,
            dimensions=dimensions,
        )

    def inputs(self, texts: Sequence[str]) -> tuple[list[np.ndarray], list[int]]:
        """Return the token ids of each input text, truncated to `inputs_length`.

        A longer text is cut at its end; EOS or the separator is kept. If inputs have neither, the
        text is cut at its beginning, because the model continues the text.

        Returns:
          The tokens of each text, int32, and the indices of truncated texts.
        """
        ending = _layout(self.members[0]).ending(self.vocabulary)
        if not ending:
            whole = [np.asarray(ids, np.int32) for ids in self.vocabulary.encode_batch(texts)]
            rows = [ids[max(0, len(ids) - self.inputs_length) :] for ids in whole]
            return rows, [i for i, ids in enumerate(whole) if len(ids) > self.inputs_length]
        room = self.inputs_length - len(ending)
        encoded = first_tokens(self.vocabulary, texts, count=room)
        rows = [np.asarray([*ids[:room], *ending], np.int32) for ids in encoded]
        return rows, [i for i, ids in enumerate(encoded) if len(ids) > room]

    def targets(self, texts: Sequence[str], *, length: int | None = None) -> list[np.ndarray]:
        """Return the token ids of each target text with EOS, int32.

        Args:
          texts: target texts.
          length: number of tokens that the caller needs of each text; longer texts may be truncated
            after `length` + 1 tokens. None returns all tokens.
        """
        if length is None:
            encoded = self.vocabulary.encode_batch(texts)
        else:
            encoded = first_tokens(self.vocabulary, texts, count=length)
        return [np.asarray([*ids, self.vocabulary.eos_id], np.int32) for ids in encoded]

    def prompts(
        self, texts: Sequence[str], *, names: Sequence[str] | None = None
    ) -> list[np.ndarray] | None:
        """Return the token ids of each prompt without EOS, int32, or None if all prompts are empty.

        Args:
          texts: prompts, with which the outputs begin.
          names: names of the prompts for error messages; None uses their indices.

        Raises:
          InputError: if a prompt contains <pad>, or is longer than `inputs_length` (a truncated
            prompt would have a different meaning).
        """
        if not any(texts):
            return None
        rows = [np.asarray(ids, np.int32) for ids in self.vocabulary.encode_batch(texts)]
        for i, ids in enumerate(rows):
            name = names[i] if names else f"text {i}"
            if len(ids) > self.inputs_length:
                raise InputError(
                    f"{name}: the prompt has {len(ids)} tokens, but the maximum is "
                    f"{self.inputs_length}; shorten it, or raise the maximum input length"
                )
            if self.vocabulary.pad_id in ids:
                raise InputError(f"{name}: the prompt contains <pad>; remove it")
        return rows

    def predictions(
        self,
        generator: Generator,
        inputs: Sequence[np.ndarray],
        *,
        prompts: Sequence[np.ndarray] | None = None,
        seeds: Sequence[int | None] | None = None,
        offset: int = 0,
        adapter_ids: Sequence[int] | None = None,
    ) -> list[list[Prediction]]:
        """Return a generator's predictions, with the prompts included in the predicted texts."""
        found = generator.run(
            self.params,
            inputs,
            prompts=prompts,
            seeds=seeds,
            offset=offset,
            adapter_ids=adapter_ids,
        )
        if prompts is None:
            return found
        return [
            [
                dataclasses.replace(one, text=self.vocabulary.decode([*prompt.tolist(), *one.ids]))
                for one in predictions
            ]
            for prompt, predictions in zip(prompts, found, strict=True)
        ]

    def _check_has(self, method: str, verb: str) -> None:
        for member in self.members:
            # The class tells: nothing is put together.
            if not hasattr(member.learner.model_type, method):
                use = "use embed"
                if answering_heads(member.experiment):
                    use = "use `t5x-lite predict`, which predicts with its head"
                raise InputError(
                    f"checkpoint {member.directory}: {member.learner.model_type.__name__} is an "
                    f"encoder and cannot {verb}; {use}"
                )


def _inputs_length(data: Data) -> int:
    return data.inputs_length if data.layout.ends else data.targets_length


def _layout(member: Loaded) -> Layout:
    return member.experiment.data.layout


def _check_together(first: Loaded, other: Loaded) -> None:
    names = f"{first.directory} and {other.directory}"
    if first.vocabulary.digest != other.vocabulary.digest:
        raise InputError(
            f"the checkpoints {names} have different vocabularies, but all checkpoints of an "
            "ensemble must have the same vocabulary"
        )
    sizes = [member.experiment.model.vocab_size for member in (first, other)]
    if sizes[0] != sizes[1]:
        raise InputError(
            f"the checkpoints {names} have the model.vocab_size {sizes[0]} and {sizes[1]}, but "
            "all checkpoints of an ensemble must have the same model.vocab_size"
        )
    endings = {_layout(member).ending(member.vocabulary) for member in (first, other)}
    if len(endings) > 1:
        raise InputError(
            f"the checkpoints {names} encode inputs differently (data.layout), but all "
            "checkpoints of an ensemble must encode inputs in the same way"
        )


LongInputs = Literal["cut", "refuse"]


class InputReader:
    """Tokenizer of input lines that truncates long inputs with a warning, or rejects them."""

    def __init__(self, long_inputs: LongInputs):
        self._long_inputs = long_inputs
        self._num_cut = 0

    def tokens(self, model: Checkpoint, lines: Sequence[Line]) -> list[np.ndarray]:
        """Return the token ids of the "inputs" of each line, int32.

        Raises:
          InputError: if an input is too long, and `long_inputs` is "refuse".
        """
        rows, cut = model.inputs([line.record["inputs"] for line in lines])
        self.tell(lines, cut, length=model.inputs_length)
        return rows

    def tell(self, lines: Sequence[Line], cut: Sequence[int], *, length: int) -> None:
        """Warn about the first truncated input; raise InputError if `long_inputs` is "refuse"."""
        if cut and self._long_inputs == "refuse":
            raise InputError(
                f"{lines[cut[0]].where}: the input is longer than {length} tokens; shorten it, "
                "raise --inputs-length, or set --long-inputs cut to truncate it"
            )
        if cut and not self._num_cut:
            _logger.warning(
                "%s: truncating this input and all further long inputs to %d tokens "
                "(--inputs-length)",
                lines[cut[0]].where,
                length,
            )
        self._num_cut += len(cut)

    def report(self) -> None:
        """Log the number of truncated inputs, if more than one was truncated."""
        if self._num_cut > 1:
            _logger.warning(
                "truncated %d inputs that were longer than --inputs-length", self._num_cut
            )


class TargetReader:
    """Tokenizer of targets that truncates long targets with a warning, or rejects them."""

    def __init__(self, long_targets: LongInputs, length: int | None):
        self._long_targets = long_targets
        self._length = length
        self._num_cut = 0

    def tokens(
        self, model: Checkpoint, texts: Sequence[str], *, names: Sequence[str]
    ) -> list[np.ndarray]:
        """Return the token ids of each target with EOS, int32.

        Raises:
          InputError: if a target is too long, and `long_targets` is "refuse".
        """
        rows = model.targets(texts, length=self._length)
        if self._length is None:
            return rows
        for name, ids in zip(names, rows, strict=True):
            if len(ids) <= self._length:
                continue
            if self._long_targets == "refuse":
                raise InputError(
                    f"{name} is longer than {self._length} tokens; shorten it, raise "
                    "--targets-length, or set --long-inputs cut to truncate it"
                )
            if not self._num_cut:
                _logger.warning(
                    "%s is longer than %d tokens (--targets-length); truncating this and all "
                    "further long targets, so that log-likelihoods cover only the kept tokens",
                    name,
                    self._length,
                )
            self._num_cut += 1
        return [ids[: self._length] for ids in rows]

    def report(self) -> None:
        """Log the number of truncated targets, if more than one was truncated."""
        if self._num_cut > 1:
            _logger.warning(
                "truncated %d targets that were longer than --targets-length", self._num_cut
            )


CHUNK_BATCHES = 32
"""Number of batches per chunk; the lines of a chunk are sorted by length to reduce padding."""

Change = Callable[[Sequence[Line], int], Iterator[dict[str, Any]]]
"""Function (input lines, number of the first line) -> output lines."""


def head_of(
    steps: Sequence[AnyPath],
    name: str | None,
    asked: Asked,
    *,
    decoding: Decoding,
    prompt: str,
) -> Head | None:
    """Return the encoder head that makes predictions, or None if the checkpoint is not an encoder.

    Raises:
      InputError: if the encoder has no such head, or an option is for another kind of model.
    """
    first, *others = steps
    experiment = read_experiment(first, checkpointing.step_files(first))
    if not is_encoder(experiment.model):
        if name is not None or asked != Asked():
            raise InputError(
                f"checkpoint {first}: {type(experiment.model).__name__.removesuffix('Config')} "
                "generates text, but the options --head, --probabilities, --threshold, "
                "--doc-stride, --longest-answer and --impossible-answers are for encoders; "
                "remove them"
            )
        return None
    head = head_for(experiment, name, where=first)
    if others:
        raise InputError(
            "several checkpoints (an ensemble) are not supported for predictions with a head; "
            "give a single --checkpoint"
        )
    if decoding != Decoding() or prompt:
        raise InputError(
            f"checkpoint {first} predicts with its head {head.name!r}; remove --prompt and the "
            "options of beam search and sampling, which are for models that generate text"
        )
    asked.check(head, where=first)
    return head


_T = TypeVar("_T")


def _by_adapter(
    model: Checkpoint, make: Callable[[Checkpoint], _T]
) -> Callable[[Sequence[Line]], tuple[Checkpoint, _T, list[int] | None]]:
    plain = make(model)
    by_row: list[_T] = []

    def for_lines(lines: Sequence[Line]) -> tuple[Checkpoint, _T, list[int] | None]:
        names = [line.record.get("adapter") for line in lines]
        own, ids = model.for_rows(names, where=[line.where for line in lines])
        if ids is None:
            return own, plain, None
        if not by_row:
            by_row.append(make(own))
        return own, by_row[0], ids

    return for_lines


def generating(
    steps: Sequence[AnyPath],
    decoding: Decoding,
    reader: InputReader,
    *,
    use: str | None,
    adapters: Sequence[str],
    inputs_length: int | None,
    prompt: str,
    batch_size: int,
) -> Change:
    """Load the model, and return a function that generates predictions for input lines.

    Sampling for a line depends on --seed and the line's number in the file (not counting blank
    lines), not on its batch. The field "seed" of a line replaces both.
    """
    model = Checkpoint.load(steps, use=use, adapters=adapters, inputs_length=inputs_length)
    for_lines = _by_adapter(model, lambda one: one.generator(decoding, batch_size=batch_size))

    def answer(lines: Sequence[Line], first: int) -> Iterator[dict[str, Any]]:
        inputs = reader.tokens(model, lines)
        prompts = model.prompts(
            [line.record.get("prompt", prompt) for line in lines],
            names=[line.where for line in lines],
        )
        seeds = [line.record.get("seed") for line in lines]
        own, generator, ids = for_lines(lines)
        found = own.predictions(
            generator, inputs, prompts=prompts, seeds=seeds, offset=first, adapter_ids=ids
        )
        for line, predictions in zip(lines, found, strict=True):
            check_finite(line.where, "the score", *(one.score for one in predictions))
            record = {**line.record, "prediction": predictions[0].text}
            if decoding.num_return > 1:
                record["predictions"] = [
                    {"text": one.text, "score": one.score} for one in predictions
                ]
            yield record

    return answer


def answering(
    steps: Sequence[AnyPath],
    head: Head,
    asked: Asked,
    reader: InputReader,
    *,
    use: str | None,
    adapters: Sequence[str],
    inputs_length: int | None,
    batch_size: int,
) -> Change:
    """Load an encoder, and return a function that applies one of its heads to input lines."""
    model = Checkpoint.load(steps, use=use, adapters=adapters, inputs_length=inputs_length)
    for_lines = _by_adapter(
        model, lambda one: one.answerer(batch_size=batch_size, head=head.name, asked=asked)
    )

    def answer(lines: Sequence[Line], _: int) -> Iterator[dict[str, Any]]:
        answerer, ids = for_lines(lines)[1:]
        encoded = answerer.encode([line.record for line in lines])
        cut = [place for place, one in enumerate(encoded) if one.cut]
        reader.tell(lines, cut, length=answerer.length)
        answers = answerer.answers(encoded, adapter_ids=ids)
        for line, found in zip(lines, answers, strict=True):
            yield {**line.record, **found}

    return answer


def scoring(
    model: Checkpoint, reader: InputReader, cutter: TargetReader, *, batch_size: int
) -> Change:
    for_lines = _by_adapter(model, lambda one: one.scorer(batch_size=batch_size))

    def add_score(lines: Sequence[Line], _: int) -> Iterator[dict[str, Any]]:
        targets = cutter.tokens(
            model,
            [line.record["targets"] for line in lines],
            names=[f"{line.where}: the target" for line in lines],
        )
        own, scorer, ids = for_lines(lines)
        values = scorer.run(own.params, reader.tokens(model, lines), targets, adapter_ids=ids)
        for line, ids, value in zip(lines, targets, values, strict=True):
            check_finite(line.where, "the log-likelihood", value)
            yield {**line.record, "log_likelihood": value, "num_tokens": len(ids)}

    return add_score


def ranking(
    model: Checkpoint,
    reader: InputReader,
    cutter: TargetReader,
    texts: Sequence[str],
    *,
    batch_size: int,
) -> Change:
    for_lines = _by_adapter(model, lambda one: Ranker(one.scorer(batch_size=batch_size)))
    candidates = cutter.tokens(
        model, texts, names=[f"the candidate {text[:40]!r}" for text in texts]
    )

    def add_ranks(lines: Sequence[Line], _: int) -> Iterator[dict[str, Any]]:
        own, ranker, ids = for_lines(lines)
        found = ranker.run(own.params, reader.tokens(model, lines), candidates, adapter_ids=ids)
        for line, values in zip(lines, found, strict=True):
            check_finite(line.where, "the log-likelihood", *values)
            yield {**line.record, "prediction": texts[int(np.argmax(values))], "scores": values}

    return add_ranks


def read_candidates(path: str, *, input: str, longest: int) -> list[str]:
    """Return the non-blank lines of a file of candidates.

    Raises:
      InputError: if all lines are blank, two lines are equal, or the file cannot be read.
    """
    if path == input == "-":
        raise InputError("--input and --candidates cannot both be standard input")
    found: dict[str, int] = {}
    for number, line in enumerate(read_lines([path], longest=longest), start=1):
        text = line.strip()
        if text in found:
            raise InputError(
                f"{path}:{number}: this candidate is the same as in line {found[text]}; remove "
                "one of the two"
            )
        if text:
            found[text] = number
    if not found:
        raise InputError(f"candidates {path} contains no candidate; write one candidate per line")
    return list(found)


def identity_of(
    command: str, input: str, steps: Sequence[AnyPath], **options: Any
) -> dict[str, Any]:
    """Return the command, input file and options, which must be unchanged to resume an output."""
    source = Path(input)
    known = source.stat() if source.is_file() else None
    if not options.get("adapters"):  # as in partial files of earlier versions
        options.pop("adapters", None)
    return {
        "command": command,
        "input": os.path.realpath(input),
        "size": known and known.st_size,
        "modified": known and known.st_mtime_ns,
        "checkpoints": [identity_of_step(step) for step in steps],
        **options,
    }


def identity_of_step(step: AnyPath) -> list[Any]:
    if isinstance(step, Path):
        return [os.path.realpath(step), (step / "params").stat().st_mtime_ns]
    return [str(step), None]  # a bucket's folders have no time


def stream(
    source: str,
    target: str,
    *,
    fields: Sequence[str],
    optional: Sequence[str] = (),
    numbers: Sequence[str] = (),
    check: Callable[[Line], None] = lambda line: None,
    longest: int = LONGEST_LINE,
    batch_size: int,
    identity: dict[str, Any],
    load: Callable[[], Change],
    steps: bool = True,
) -> None:
    """Write an output line, such as a prediction, for each line of an input file."""
    chunk = CHUNK_BATCHES * batch_size
    with _output(source, target, identity=identity | {"chunk": chunk}, chunk=chunk) as file:
        lines = json_lines.read_examples(
            source,
            fields=fields,
            optional=optional,
            numbers=numbers,
            skip=file.done,
            longest=longest,
        )
        checked = (line for line in lines if check(line) is None)
        chunks = iter(lambda: list(itertools.islice(checked, chunk)), [])
        first = next(chunks, None)  # a wrong input is seen before a large model is loaded
        number = file.done
        if first is None:
            if not number:
                raise InputError(
                    "standard input is empty"
                    if source == "-"
                    else f"input {source} contains no line"
                )
            return
        if target != "-" and os.path.isfile(target):
            _logger.info(
                "output %s already exists; replacing it when the new output is complete", target
            )
        with waiting("loading the checkpoint"):
            change = load()
        with counting(
            "answering", unit="lines", total=count_lines(source), done=number, steps=steps
        ) as advance:
            for some in itertools.chain([first], chunks):
                file.write(*change(some, number))
                number += len(some)
                if not steps:
                    advance(len(some))


def _output(
    source: str, target: str, *, identity: dict[str, Any], chunk: int
) -> contextlib.AbstractContextManager[ResumableWriter | json_lines.Writer]:
    if is_resumable(target) and Path(source).is_file():
        return resumable_writer(target, identity=identity, chunk=chunk)
    return json_lines.writer(target)
