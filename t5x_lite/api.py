"""Python API: a `Model` loaded from a checkpoint generates, predicts, scores, ranks and encodes.

    import t5x_lite

    model = t5x_lite.load("work/sst2")
    model.generate(["sst2 sentence: a moving and funny film"], num_beams=4)     # ["positive"]

    model = t5x_lite.load("work/bert_sst2")
    model.predict(["a moving and funny film"])          # [{"prediction": "positive"}]

The commands `predict` and `score` do the same with files.
"""

import dataclasses
import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, overload

import numpy as np

from t5x_lite.adapters.composition import Block
from t5x_lite.adapters.grammar import parse_trees
from t5x_lite.checkpoints.init import base_at
from t5x_lite.core import trees
from t5x_lite.core.accelerators import quiet_without_tpu
from t5x_lite.core.errors import InputError, shown
from t5x_lite.core.options import did_you_mean, suggesting
from t5x_lite.core.project import trusting_checkpoints
from t5x_lite.decoding.sampling import Decoding
from t5x_lite.inference.answers import Answerer, Asked, answering_heads, check_record, kind_of
from t5x_lite.inference.checkpoint import Checkpoint, check_finite
from t5x_lite.inference.generate import Generator, Prediction, Ranker, Scorer
from t5x_lite.inference.loading import ModulesOf, Step, multi_task
from t5x_lite.inference.pairs import CrossEncoder, scores_texts
from t5x_lite.inference.text_encoder import Embedder, TextEncoder, dense_head
from t5x_lite.models.vector_heads import Pooling, Role

__all__ = ["Decoding", "Model", "Prediction", "Ranking", "load"]

_logger = logging.getLogger(__name__)


class Ranking(NamedTuple):
    """Candidates ranked for one input.

    Attributes:
      prediction: the most likely candidate.
      scores: log-likelihood of each candidate, in the order of the candidates.
    """

    prediction: str
    scores: tuple[float, ...]


@dataclasses.dataclass
class _Programs:
    """Compiled programs of a model with one combination of adapters."""

    model: Checkpoint
    generators: dict[Decoding, Generator] = dataclasses.field(default_factory=dict)
    encoders: dict[tuple[Pooling | None, bool | None, int | None], tuple[TextEncoder, Embedder]] = (
        dataclasses.field(default_factory=dict)
    )
    answerers: dict[tuple[str | None, Asked], Answerer] = dataclasses.field(default_factory=dict)
    scorer: Scorer | None = None
    pairs: CrossEncoder | None = None


@suggesting
def load(
    *checkpoints: str | os.PathLike[str],
    step: Step = None,
    batch_size: int = 32,
    inputs_length: int | None = None,
    base: str | os.PathLike[str] | None = None,
    use: str | None = None,
    trust_project: bool = False,
) -> "Model":
    """Load a checkpoint, or several checkpoints as an ensemble that averages their logits.

    Args:
      *checkpoints: work directories, checkpoint directories, or imported checkpoints.
      step: checkpoint to load from a work directory: a step number, "best" (by the evaluations
        during training), or None for the newest.
      batch_size: number of examples per batch.
      inputs_length: maximum input length, in tokens; longer inputs are truncated with a warning.
        None uses the maximum length in training.
      base: directory of the base model, for a checkpoint that stores only its trained parameters.
        None uses the base directory recorded in the checkpoint.
      use: adapters of the checkpoint to use, in the syntax of `Model.use`. None uses the
        adapters that the run used. `Model.add_adapter` loads adapters of other checkpoints.
      trust_project: True to let a checkpoint's config import classes outside of t5x_lite, such as
        your project in the current directory. Their code runs when the config is read.

    Raises:
      InputError: if a checkpoint does not exist or is incomplete, the checkpoints cannot form an
        ensemble, or a config has a class that is not trusted.
    """
    directories = [os.fspath(checkpoint) for checkpoint in checkpoints]
    where = None if base is None else os.fspath(base)
    with trusting_checkpoints(trust_project), quiet_without_tpu(), base_at(where):
        model = Checkpoint.load(directories, step=step, use=use, inputs_length=inputs_length)
    return Model(model, batch_size=batch_size)


class Model:
    """Loaded checkpoint, or an ensemble of checkpoints, as returned by `t5x_lite.load`.

    Compiled programs are kept and reused by calls with the same decoding options.
    """

    def __init__(self, model: Checkpoint, *, batch_size: int):
        if batch_size < 1:
            raise InputError(f"batch_size must be at least 1, got {batch_size}")
        self._batch_size = batch_size
        self._modules: ModulesOf | None = None
        self._used: dict[tuple[str | Block, ...], _Programs] = {}
        self._programs = _Programs(model)

    def __repr__(self) -> str:
        """Return text like "Model(T5, 1,869,568 parameters, vocabulary 4,224, work/sst2)"."""
        members = self._model.members
        first, directory = members[0], members[0].directory
        words = [
            type(first.experiment.model).__name__.removesuffix("Config"),
            f"{trees.count_parameters(first.params):,} parameters",
            f"vocabulary {first.experiment.model.vocab_size:,}",
        ]
        words += [f"step {first.step:,}"] if first.step else []
        adapters = first.experiment.adapters.modules
        words += [f"adapters {' '.join(module.name for module in adapters)}"] if adapters else []
        words += [str(directory)]
        ensemble = f"ensemble of {len(members)}: " if len(members) > 1 else ""
        return f"Model({ensemble}{', '.join(words)})"

    def add_adapter(self, name: str, directory: str | os.PathLike[str]) -> None:
        """Load an adapter that was trained with the same base model; activate it by `use`.

        Args:
          name: name of the adapter; a checkpoint with several adapters must contain this name.
          directory: work directory or checkpoint directory of the adapter.

        Raises:
          InputError: if the checkpoint has no such adapter, the name is in use, the adapter was
            trained with another base model, or this model is an ensemble.
        """
        self._modules = self._of_checkpoint().adding(name, os.fspath(directory))

    def use(self, modules: str = "") -> None:
        """Set the adapters that the model uses in all further calls.

        Programs compiled earlier for the same adapters are reused.

        Args:
          modules: names of adapters separated by commas, such as "rte" or "rte, style", or
            compositions, such as "Average(rte, style)"; "" uses the base model without adapters.

        Raises:
          InputError: if an adapter is unknown, or two adapters change the same layer.
        """
        if not isinstance(modules, str):
            raise InputError(
                "the argument modules must be a string of adapter names, such as 'rte, style', "
                f"got {modules!r}"
            )
        trees = parse_trees(modules)
        held = self._of_checkpoint()
        if trees not in self._used:
            model = dataclasses.replace(self._programs.model, members=(held.using(trees),))
            self._used[trees] = _Programs(model)
        self._programs = self._used[trees]

    @property
    def adapters(self) -> tuple[str, ...]:
        """Names of the adapters that `use` accepts."""
        return tuple(self._of_checkpoint().adapters)

    def _for_rows(
        self, adapters: Sequence[str | None] | None, *, num: int
    ) -> tuple[_Programs, list[int] | None]:
        """Return compiled programs for texts with different adapters, and the adapter ids."""
        if adapters is None or not any(adapters):
            return self._programs, None
        if isinstance(adapters, str) or len(adapters) != num:
            raise InputError(
                f"adapters must be a list with a name or None for each of {num} texts: got "
                f"{shown(adapters)}"
            )
        held = self._of_checkpoint()
        key = (multi_task(self._model.members[0].learner.use, tuple(held.adapters)),)
        model = dataclasses.replace(self._model, modules=held)
        model, ids = (self._used[key].model if key in self._used else model).for_rows(adapters)
        return self._used.setdefault(key, _Programs(model)), ids

    def _of_checkpoint(self) -> ModulesOf:
        if self._modules is None:
            members = self._model.members
            if len(members) != 1:
                raise InputError("an ensemble does not support adapters; load a single checkpoint")
            self._modules = ModulesOf.of(members[0])
            self._used[members[0].experiment.adapters.composition] = self._programs
        return self._modules

    @property
    def _model(self) -> Checkpoint:
        return self._programs.model

    def generate(
        self,
        texts: Sequence[str],
        *,
        prompts: str | Sequence[str] = "",
        seeds: Sequence[int | None] | None = None,
        adapters: Sequence[str | None] | None = None,
        **decoding: Any,
    ) -> list[str]:
        """Return the best generated output for each text.

        Args:
          texts: input texts; an empty text becomes a single end-of-sequence token.
          prompts: text that the outputs begin with, one for all texts or one for each text; at most
            as long as the maximum input length.
          seeds: random seeds for sampling, one for each text: text i gets the result of
            `generate([text], seed=seeds[i])`. With seed None, a text is sampled by `seed` and its
            index in the list.
          adapters: name of an adapter for each text, such as ["rte", None, "mrpc"]; None uses the
            adapters of `use`. Texts with different adapters share batches.
          **decoding: fields of `t5x_lite.api.Decoding`, such as num_beams=4 or temperature=0.8.

        Raises:
          InputError: if texts is not a list, the options contradict each other, or a score is NaN
            or infinite because of broken weights.
        """
        found = self._predictions(
            texts, prompts=prompts, seeds=seeds, adapters=adapters, **decoding
        )
        return [best.text for best, *_ in found]

    def predict(
        self,
        texts: Sequence[str | tuple[str, str] | Mapping[str, Any]],
        *,
        prompts: str | Sequence[str] = "",
        seeds: Sequence[int | None] | None = None,
        adapters: Sequence[str | None] | None = None,
        head: str | None = None,
        **options: Any,
    ) -> list[Any]:
        """Return a prediction for each text, by generation or by a head of an encoder.

        Sampling depends on a text's index in the list, or on its own seed, but not on the other
        texts.

        Args:
          texts: input texts. A head also accepts a pair (text, second text), for question answering
            (question, context), or a dict such as {"inputs": ..., "choices": [...]}.
          prompts: text that the outputs begin with; only for models that generate text.
          seeds: random seeds for sampling, as for `generate`; only for models that generate text.
          head: name of an encoder's head; None uses the head that the training objective trained,
            or the only head.
          adapters: as for `generate`; all adapters use the same head.
          **options: for models that generate text, fields of `t5x_lite.api.Decoding`; for a head,
            fields of `t5x_lite.inference.answers.Asked`, such as probabilities or threshold.

        Returns:
          For a model that generates text, a list of the num_return best `Prediction`s for each
          text, best first. For a head, a dict {"prediction": ...} for each text, as in the output
          of `t5x-lite predict`.

        Raises:
          InputError: if the head does not accept a text, or the model does not support an option.
        """
        members = self._model.members
        if head is None and not all(answering_heads(one.experiment) for one in members):
            return self._predictions(
                texts, prompts=prompts, seeds=seeds, adapters=adapters, **options
            )
        if prompts or seeds is not None:
            raise InputError(
                "the arguments prompts and seeds require a model that generates text, but this "
                "model predicts with a head"
            )
        asked = _asked(options)
        programs, ids = self._for_rows(adapters, num=len(texts))
        answerers = programs.answerers
        if (head, asked) not in answerers:
            answerers[head, asked] = programs.model.answerer(
                batch_size=self._batch_size, head=head, asked=asked
            )
        answerer = answerers[head, asked]
        records = _records(texts, answerer)
        for i, record in enumerate(records):
            check_record(answerer.head, record, where=f"text {i}")
        encoded = answerer.encode(records)
        self._tell_cut([i for i, one in enumerate(encoded) if one.cut], length=answerer.length)
        return answerer.answers(encoded, adapter_ids=ids)

    def _predictions(
        self,
        texts: Sequence[Any],
        *,
        prompts: str | Sequence[str] = "",
        seeds: Sequence[int | None] | None = None,
        adapters: Sequence[str | None] | None = None,
        **decoding: Any,
    ) -> list[list[Prediction]]:
        how = _decoding(decoding)
        programs, ids = self._for_rows(adapters, num=len(texts))
        generators = programs.generators
        if how not in generators:
            generators[how] = programs.model.generator(how, batch_size=self._batch_size)
        given = [prompts] * len(texts) if isinstance(prompts, str) else list(prompts)
        if len(given) != len(texts):
            raise InputError(
                f"prompts must have one prompt for each text, but there are {len(texts)} texts "
                f"and {len(given)} prompts"
            )
        _check_seeds(seeds, num=len(texts))
        found = programs.model.predictions(
            generators[how],
            self._inputs(texts),
            prompts=self._model.prompts(given),
            seeds=seeds,
            adapter_ids=ids,
        )
        for i, predictions in enumerate(found):
            check_finite(f"text {i}", "the score", *(one.score for one in predictions))
        return found

    def score(
        self,
        pairs: Sequence[tuple[str, str]],
        *,
        adapters: Sequence[str | None] | None = None,
    ) -> list[float]:
        """Return the log-likelihood of each (input, target), summed over target tokens and EOS.

        An empty target has one token, EOS. A cross-encoder instead returns its raw score of each
        (query, passage) pair. `adapters` names an adapter for each pair, as in `generate`.
        """
        if (scorer := self._cross_encoder()) is not None:
            if adapters is not None:
                raise InputError(
                    "a cross-encoder does not support the argument adapters; choose an adapter by "
                    "the method use()"
                )
            return scorer.scores(list(pairs)).tolist()
        programs, ids = self._for_rows(adapters, num=len(pairs))
        targets = self._model.targets([target for _, target in pairs])
        inputs = self._inputs([text for text, _ in pairs])
        scores = self._get_scorer(programs).run(
            programs.model.params, inputs, targets, adapter_ids=ids
        )
        for i, score in enumerate(scores):
            check_finite(f"pair {i}", "the log-likelihood", score)
        return scores

    def rank(self, texts: Sequence[str], candidates: Sequence[str]) -> list[Ranking]:
        """Return the most likely candidate for each text, and the scores of all candidates.

        A cross-encoder ranks the candidates as passages for each text, by raw scores.
        """
        _check_texts(texts)
        _check_texts(candidates)
        if not candidates:
            raise InputError("the argument candidates is empty; give at least one candidate")
        if (scorer := self._cross_encoder()) is not None:
            pairs = [(text, candidate) for text in texts for candidate in candidates]
            table = scorer.scores(pairs).reshape(len(texts), len(candidates))
            return [Ranking(candidates[int(np.argmax(row))], tuple(row.tolist())) for row in table]
        found = Ranker(self._get_scorer(self._programs)).run(
            self._model.params, self._inputs(texts), self._model.targets(candidates)
        )
        for i, scores in enumerate(found):
            check_finite(f"text {i}", "the log-likelihood", *scores)
        return [Ranking(candidates[int(np.argmax(scores))], tuple(scores)) for scores in found]

    @overload
    def encode(
        self,
        texts: Sequence[str],
        *,
        per_token: Literal[False] = False,
        pooling: Pooling | None = None,
        normalize: bool | None = None,
        dimensions: int | None = None,
        role: Role = "query",
        adapters: Sequence[str | None] | None = None,
    ) -> np.ndarray: ...

    @overload
    def encode(
        self,
        texts: Sequence[str],
        *,
        per_token: Literal[True],
        role: Role = "query",
        adapters: Sequence[str | None] | None = None,
    ) -> list[np.ndarray]: ...

    def encode(
        self,
        texts: Sequence[str],
        *,
        per_token: bool = False,
        pooling: Pooling | None = None,
        normalize: bool | None = None,
        dimensions: int | None = None,
        role: Role = "query",
        adapters: Sequence[str | None] | None = None,
    ) -> np.ndarray | list[np.ndarray]:
        """Return one vector for each text, or the hidden states of its tokens.

        Args:
          texts: texts to encode.
          per_token: True to return the hidden state of each token instead of one vector per text.
          pooling: "mean" averages the hidden states of all tokens, including [CLS], [SEP] or EOS;
            "cls" takes the [CLS] hidden state, which T5 does not have. None uses the pooling of a
            retriever's checkpoint, and "mean" for other models.
          normalize: True to scale vectors to length 1. None uses the setting of a retriever's
            checkpoint, and False for other models.
          dimensions: number of leading dimensions to keep of each vector; None keeps all.
          role: kind of the texts, "query" or "passage", for a retriever with two encoders or two
            projections.
          adapters: name of an adapter for each text, as in `generate`.

        Returns:
          One vector per text, float32 [n, d_model]; with per_token, an array [tokens, d_model] for
          each text.

        Raises:
          InputError: if the model has no encoder, has no [CLS] token for pooling "cls", or is an
            ensemble.
        """
        _check_texts(texts)
        if dense_head(self._model.members[0].experiment) is None:
            pooling, normalize = pooling or "mean", bool(normalize)
        how = (pooling, normalize, dimensions)
        programs, ids = self._for_rows(adapters, num=len(texts))
        encoders = programs.encoders
        if how not in encoders:
            encoder = programs.model.encoder(
                pooling=pooling, normalize=normalize, dimensions=dimensions
            )
            encoders[how] = encoder, encoder.embedder(batch_size=self._batch_size)
        encoder, embedder = encoders[how]
        begins = encoder.begins_with(None, None)
        inputs, cut = encoder.rows([begins + text for text in texts])
        self._tell_cut(cut, length=encoder.length)
        if per_token:
            states = embedder.states(programs.model.params, inputs, role=role, adapter_ids=ids)
        else:
            states = embedder.run(programs.model.params, inputs, role=role, adapter_ids=ids)
        for i, state in enumerate(states):
            what = "a state" if per_token else "the vector"
            check_finite(f"text {i}", what, float(state.sum()))
        return states

    def _inputs(self, texts: Sequence[str]) -> list[np.ndarray]:
        _check_texts(texts)
        rows, cut = self._model.inputs(texts)
        self._tell_cut(cut, length=self._model.inputs_length)
        return rows

    def _tell_cut(self, cut: Sequence[int], *, length: int) -> None:
        if cut:
            _logger.warning(
                "truncated %d inputs to %d tokens, the first of them text %d; to change the "
                "maximum length, use load(..., inputs_length=N)",
                len(cut),
                length,
                cut[0],
            )

    def _cross_encoder(self) -> CrossEncoder | None:
        if self._programs.pairs is None and all(map(scores_texts, self._model.members)):
            self._programs.pairs = self._model.pair_scorer(batch_size=self._batch_size)
        return self._programs.pairs

    def _get_scorer(self, programs: _Programs) -> Scorer:
        if programs.scorer is None:
            programs.scorer = programs.model.scorer(batch_size=self._batch_size)
        return programs.scorer


def _decoding(options: Mapping[str, Any]) -> Decoding:
    known = [field.name for field in dataclasses.fields(Decoding)]
    for name in options:
        if name not in (*known, "max_length"):  # `Decoding` gives the new name of the latter
            near = did_you_mean(name, known) or f"; the decoding options are {', '.join(known)}"
            raise InputError(f"unknown keyword {name}{near}")
    return Decoding(**options)


def _asked(options: Mapping[str, Any]) -> Asked:
    known = [field.name for field in dataclasses.fields(Asked)]
    for name in options:
        if name not in known:
            near = did_you_mean(name, known) or f"; the options of a head are {', '.join(known)}"
            raise InputError(f"unknown keyword {name}{near}")
    return Asked(**options)


def _records(
    texts: Sequence[str | tuple[str, str] | Mapping[str, Any]], answerer: Answerer
) -> list[Mapping[str, Any]]:
    """Convert texts, pairs and dicts to the records that an encoder's head reads."""
    _check_texts(texts)
    pair = ("question", "context") if kind_of(answerer.head) == "span" else ("inputs", "second")
    found: list[Mapping[str, Any]] = []
    for i, text in enumerate(texts):
        if isinstance(text, str):
            found.append({"inputs": text})
        elif isinstance(text, Mapping):
            found.append(text)
        elif isinstance(text, (tuple, list)) and len(text) == 2:
            found.append(dict(zip(pair, text, strict=True)))
        else:
            raise InputError(
                f"text {i} must be a string, a pair of strings or a dict, got {type(text).__name__}"
            )
    return found


def _check_seeds(seeds: Sequence[int | None] | None, *, num: int) -> None:
    if seeds is None:
        return
    if len(seeds) != num:
        raise InputError(
            f"seeds must have one seed for each text, but there are {num} texts and "
            f"{len(seeds)} seeds"
        )
    for seed in seeds:
        if seed is not None:
            Decoding(seed=seed)


def _check_texts(texts: Sequence[Any]) -> None:
    """Raise InputError if a single string is given instead of a list of strings."""
    if isinstance(texts, str):
        raise InputError(
            "the argument texts must be a list of strings, but is a single string; give "
            f"[{texts[:40]!r}]"
        )
