"""A checkpoint, or an ensemble of several, ready for use: it generates, scores, encodes, answers.

    model = Checkpoint.load(["work/sst2"])
    rows, _ = model.inputs(["sst2 sentence: a moving and funny film"])
    predictions = model.predictions(model.generator(Decoding(), batch_size=32), rows)

    Checkpoint.load(["work/bert_sst2"]).answerer().run([{"inputs": "a funny film"}])
    Checkpoint.load(["work/ranker"]).pair_scorer().scores([("a query", "a passage")])
    Checkpoint.load(["work/retriever"]).encoder()       # vectors: inference.text_encoder

An ensemble averages its models' logits (Raffel et al. 2020, section 3.6); they share a vocabulary.
Inputs and targets end with EOS, so an empty text is encoded as a single EOS. There are two
exceptions: inputs of a language model of plain text (data.layout LM()) have no end, because it
continues them; if the layout has a separator, its tokens end the inputs, and they are added here.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any, overload

import numpy as np
from jax.sharding import Mesh

from t5x_lite.adapters.config import Adapters
from t5x_lite.core.errors import InputError, shown
from t5x_lite.core.options import did_you_mean
from t5x_lite.core.remote import AnyPath
from t5x_lite.core.trees import ComputeDtype, Params
from t5x_lite.data.config import Data
from t5x_lite.data.vocabularies.encoder_tokens import first_tokens
from t5x_lite.data.vocabularies.loading import Vocabulary
from t5x_lite.decoding.config import Decoding
from t5x_lite.decoding.generate import Ensemble
from t5x_lite.decoding.search import Preparation
from t5x_lite.inference.answers import (
    LONGEST_WINDOW,
    Answerer,
    Asked,
    answering_heads,
    head_for,
    kind_of,
)
from t5x_lite.inference.generate import Generator, Prediction, Scorer
from t5x_lite.inference.loading import Loaded, Step, find_step, position_bytes
from t5x_lite.inference.modules import ModulesOf, load_both, multi_task
from t5x_lite.inference.pairs import CrossEncoder, HeadScorer
from t5x_lite.inference.text_encoder import TextEncoder
from t5x_lite.layouts.base import Layout
from t5x_lite.models.encoder import EncoderConfig
from t5x_lite.models.towers import Pooling


def find_steps(checkpoints: Sequence[AnyPath | str], *, step: Step = None) -> list[AnyPath]:
    """Return the step directories of `--checkpoint DIR [DIR ...]`.

    Raises:
      InputError: if no checkpoint is given, or one of them does not exist.
    """
    if not checkpoints:
        raise InputError("a model needs at least one checkpoint directory")
    return [find_step(checkpoint, step=step) for checkpoint in checkpoints]


def check_finite(where: str, what: str, *values: float) -> None:
    """Raise InputError for NaN or infinity, which JSON lacks and broken weights cause.

    Args:
      where: line or text that the values belong to.
      what: name of the values, such as "the score".
      *values: the values.

    Raises:
      InputError: if one is NaN or infinite.
    """
    if not all(math.isfinite(value) for value in values):
        raise InputError(
            f"{where}: {what} is not finite: the checkpoint's weights are broken, or the compute "
            "dtype is too narrow for them"
        )


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """Models that answer as one.

    Attributes:
      members: the checkpoints, one or more.
      inputs_length: maximum tokens of an input.
      asked_length: the same where a caller gave it, else None.
      mesh: devices that hold the parameters; None is the first device.
      modules: adapters that rows may name, of a single checkpoint.
      names: names of the adapters with the ids 1, 2, ... in a model of `by_row`; otherwise ().
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
        """Read one checkpoint or several.

        Args:
          checkpoints: work directories or step directories.
          step: the step to take from work directories: its number, "best", or None for the newest.
          use: as for `load_using`; of several checkpoints, each uses its own modules.
          adapters: NAME=DIR of further adapters of the same base, which rows may name.
          mesh: mesh of the parameters; if None, the first device.
          inputs_length: maximum tokens of an input; if None, the models' shortest training length.
          compute_dtype: dtype of the activations; if None, the dtype in each checkpoint's run.

        Raises:
          InputError: a checkpoint is wrong, they do not go together, or `inputs_length` is below 1.
        """
        if inputs_length is not None and inputs_length < 1:
            raise InputError(f"inputs_length must be at least 1, got {inputs_length}")
        directories = find_steps(checkpoints, step=step)
        loaded = [load_both(str(one), step=None, use=use, mesh=mesh) for one in directories]
        members = tuple(member.computing_in(compute_dtype) for member, _ in loaded)
        modules = loaded[0][1] if len(loaded) == 1 else None
        if adapters and modules is None:
            raise InputError("an ensemble does not support adapters.load; give one --checkpoint")
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
          names: adapters of `modules` with the ids 1, 2, ...; a None is the base without adapters.
            If None, all adapters.

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
        """Return the model that answers some rows, and the adapter id of each row.

        Args:
          names: adapter of each row; None for the adapters that the checkpoint uses.
          where: location of each row, for the message of an error.

        Returns:
          This model and None if no row names an adapter, else the model of `by_row` and the ids.

        Raises:
          InputError: if an adapter is unknown; or as for `by_row`.
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
        """The vocabulary of all of them."""
        return self.members[0].vocabulary

    @property
    def params(self) -> Params:
        """Input of `bind`: one model's parameters, or each member's by its number."""
        if len(self.members) == 1:
            return self.members[0].params
        return {str(i): member.params for i, member in enumerate(self.members)}

    def bind(self, params: Params) -> Any:
        """Return the model, in the compute dtype: one, or the ensemble under the same protocol."""
        if len(self.members) == 1:
            return self.members[0].learner.bind_model(params)
        return Ensemble(
            [member.learner.bind_model(params[str(i)]) for i, member in enumerate(self.members)]
        )

    @functools.cached_property
    def preparation(self) -> Preparation:
        """The model laid out for decoding, once for all generators."""
        return Preparation(self.bind)

    def generator(self, decoding: Decoding, *, batch_size: int) -> Generator:
        """Return the generator of predictions.

        Raises:
          InputError: a model is an encoder, which generates no text.
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
        """Return the scorer of log-likelihoods.

        Raises:
          InputError: a model is an encoder, which generates no text.
        """
        self._check_has("target_logits", "score targets")
        return Scorer(self.bind, batch_size=batch_size)

    def answerer(
        self, *, batch_size: int = 32, head: str | None = None, asked: Asked | None = None
    ) -> Answerer:
        """Return a head on an encoder, ready to answer texts.

        Args:
          batch_size: rows that go through the model at once.
          head: its name; None is the one that the objective trained, or the only one.
          asked: options of the answers; None is the defaults.

        Raises:
          InputError: if the head does not exist, an option does not fit it, or this is an ensemble.
        """
        first = self._only("has no head in common; give one --checkpoint")
        experiment, data = first.experiment, first.experiment.data
        if not isinstance(experiment.model, EncoderConfig):
            raise InputError(
                f"checkpoint {first.directory}: {first.learner.model_type.__name__} writes text "
                "and has no head; predict without --head answers with it"
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
        """Return what scores passages for queries.

        Args:
          heads: heads of a BGE-M3 for a weighted mean of scores; () for a cross-encoder.
          weights: weights of all three of these heads.
          batch_size: pairs scored at once; with heads texts.
          query_length: maximum tokens of a query; None is as it was trained.

        Raises:
          InputError: if the checkpoint has no such head, or this is an ensemble.
        """
        first = self._only("does not score pairs; load one checkpoint")
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
          pooling: "cls" or "mean"; None is what the checkpoint says, or else "mean", with a
            warning.
          normalize: True if vectors have length 1; if None, the checkpoint's choice, or else True.
          dimensions: number of leading dimensions that a vector keeps, such as one that
            `Matryoshka` trained; None keeps all.

        Raises:
          InputError: this is an ensemble, or a model without an encoder.
        """
        first = self._only("has no common vectors; load one checkpoint")
        return TextEncoder.of(
            first,
            mesh=self.mesh,
            length=self.asked_length,
            pooling=pooling,
            normalize=normalize,
            dimensions=dimensions,
        )

    def inputs(self, texts: Sequence[str]) -> tuple[list[np.ndarray], list[int]]:
        """Return tokens of each text, at most `inputs_length`.

        A longer text is cut at its end, and its EOS, or the separator, stays; where inputs have no
        EOS it is cut at its beginning, because the model continues with its end.

        Returns:
          int32 tokens of each text, and the numbers of the texts that were cut.
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
        """int32 tokens of each text with EOS.

        Args:
          texts: any.
          length: requested number for each; longer texts may have a few more. If None, all.
        """
        if length is None:
            encoded = self.vocabulary.encode_batch(texts)
        else:
            encoded = first_tokens(self.vocabulary, texts, count=length)
        return [np.asarray([*ids, self.vocabulary.eos_id], np.int32) for ids in encoded]

    def prompts(
        self, texts: Sequence[str], *, names: Sequence[str] | None = None
    ) -> list[np.ndarray] | None:
        """Return int32 tokens of each text, without EOS, or None if all are empty.

        Args:
          texts: texts that the outputs begin with.
          names: source of each, for the error; if None, a number.

        Raises:
          InputError: if one is longer than `inputs_length`, as a truncated prompt would change the
            meaning; or if one holds padding, which `<pad>` in a text may be.
        """
        if not any(texts):
            return None
        rows = [np.asarray(ids, np.int32) for ids in self.vocabulary.encode_batch(texts)]
        for i, ids in enumerate(rows):
            name = names[i] if names else f"text {i}"
            if len(ids) > self.inputs_length:
                raise InputError(
                    f"{name}: the prompt is longer than {self.inputs_length} tokens (it has "
                    f"{len(ids)}); shorten it, or raise the length of inputs"
                )
            if self.vocabulary.pad_id in ids:
                raise InputError(f"{name}: the prompt holds <pad>; remove it")
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
        """Return a generator's predictions, with the model's prompts in front of the texts."""
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
                    use = "use predict, which answers by its head"
                raise InputError(
                    f"checkpoint {member.directory}: {member.learner.model_type.__name__} is an "
                    f"encoder and cannot {verb}; {use}"
                )


def _inputs_length(data: Data) -> int:
    return data.inputs_length if data.layout.ends else data.targets_length


def _layout(member: Loaded) -> Layout:
    return member.experiment.data.layout


def _check_together(first: Loaded, other: Loaded) -> None:
    names = f"the checkpoints {first.directory} and {other.directory}"
    if first.vocabulary.digest != other.vocabulary.digest:
        raise InputError(f"{names} have different vocabularies: an ensemble needs one")
    sizes = [member.experiment.model.vocab_size for member in (first, other)]
    if sizes[0] != sizes[1]:
        raise InputError(
            f"{names} have different model.vocab_size, {sizes[0]} and {sizes[1]}: an ensemble "
            "averages logits of one size"
        )
    endings = {_layout(member).ending(member.vocabulary) for member in (first, other)}
    if len(endings) > 1:
        raise InputError(f"{names} read inputs differently (data.layout): an ensemble cannot")
