"""The package from Python: a checkpoint as an object that answers, scores, ranks and encodes.

    import t5x_lite

    model = t5x_lite.load("work/sst2")
    model.generate(["sst2 sentence: a moving and funny film"], num_beams=4)     # ["positive"]

    model = t5x_lite.load("work/bert_sst2")
    model.predict(["a moving and funny film"])          # [{"prediction": "positive"}]

It is what the command line's predict and score are made of, without files.
"""

import dataclasses
import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, overload

import numpy as np

from t5x_lite.adapters.composition import Block
from t5x_lite.adapters.grammar import parse_trees
from t5x_lite.checkpoints.base import base_at
from t5x_lite.core import trees
from t5x_lite.core.accelerators import quiet_without_tpu
from t5x_lite.core.errors import InputError
from t5x_lite.core.options import did_you_mean, suggesting
from t5x_lite.core.project import trusting_checkpoints
from t5x_lite.decoding.config import Decoding
from t5x_lite.inference.answers import Answerer, Asked, answering_heads, check_record, kind_of
from t5x_lite.inference.checkpoint import Checkpoint, check_finite
from t5x_lite.inference.generate import Generator, Prediction, Ranker, Scorer
from t5x_lite.inference.loading import Step
from t5x_lite.inference.modules import ModulesOf
from t5x_lite.inference.pairs import CrossEncoder, scores_texts
from t5x_lite.inference.text_encoder import TextEncoder, dense_head
from t5x_lite.inference.vectors import Embedder
from t5x_lite.models.towers import Pooling
from t5x_lite.models.vector_heads import Role

__all__ = ["Decoding", "Model", "Prediction", "Ranking", "load"]

_logger = logging.getLogger(__name__)


class Ranking(NamedTuple):
    """Candidates after one input.

    Attributes:
      prediction: the likeliest candidate.
      scores: the log-likelihood of each candidate, in the order given.
    """

    prediction: str
    scores: tuple[float, ...]


@dataclasses.dataclass
class _Programs:
    """A model with some modules in use, and what was made for it."""

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
    """Loads a checkpoint, or several as an ensemble that averages their logits.

    Args:
      *checkpoints: work directories, step directories, or what `t5x-lite import` wrote.
      step: the step to take from work directories: its number, "best" (by the run's own
        evaluations), or None for the newest.
      batch_size: rows that go through the model at once.
      inputs_length: tokens of an input at most, longer ones are cut with a warning; None is what
        the model was trained with.
      base: where the base of a checkpoint is that holds its trained part alone; None is where it
        was when the run began.
      use: modules of the checkpoint that are in its model, as `Model.use` takes them; None is all,
        composed as its run did it. Those that are left out come by `Model.add_adapter`.
      trust_project: whether a checkpoint's config may name classes of modules besides those of
        t5x_lite, of your project in the current directory, too: reading it runs them.

    Raises:
      InputError: there is no such checkpoint, a part of it is missing, or they do not go together;
        or one names a class that is not trusted.
    """
    directories = [os.fspath(checkpoint) for checkpoint in checkpoints]
    where = None if base is None else os.fspath(base)
    with trusting_checkpoints(trust_project), quiet_without_tpu(), base_at(where):
        model = Checkpoint.load(directories, step=step, use=use, inputs_length=inputs_length)
    return Model(model, batch_size=batch_size)


class Model:
    """A checkpoint that is ready for use, or an ensemble; made by `t5x_lite.load`.

    What is compiled for one call serves the next with the same decoding.

    Args:
      model: what reads and writes.
      batch_size: rows that go through it at once.
    """

    def __init__(self, model: Checkpoint, *, batch_size: int):
        if batch_size < 1:
            raise InputError(f"batch_size must be at least 1, got {batch_size}")
        self._batch_size = batch_size
        self._modules: ModulesOf | None = None
        self._used: dict[tuple[str | Block, ...], _Programs] = {}
        self._programs = _Programs(model)

    def __repr__(self) -> str:
        """What it is: Model(T5, 1,869,568 parameters, vocabulary 4,224, step 120, work/sst2)."""
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
        """Reads a module that was trained with the same base; `use` puts it into the model.

        Args:
          name: that it has here; the module of that name in the checkpoint, or the only one.
          directory: a work directory or a step directory.

        Raises:
          InputError: there is no such module, one of that name is here, it was trained with
            another base, or this is an ensemble.
        """
        self._modules = self._of_checkpoint().adding(name, os.fspath(directory))

    def use(self, modules: str = "") -> None:
        """Puts modules into the model, which all calls use from now on.

        What was compiled for them stays for the next time.

        Args:
          modules: names with commas between, "rte" or "rte, style", or blocks of them, as
            "Average(rte, style)"; "" is the base alone.

        Raises:
          InputError: one is not there, or two would stand at one site.
        """
        if not isinstance(modules, str):
            raise InputError(f"modules must be a string, such as 'rte, style': got {modules!r}")
        trees = parse_trees(modules)
        held = self._of_checkpoint()
        if trees not in self._used:
            model = dataclasses.replace(self._programs.model, members=(held.using(trees),))
            self._used[trees] = _Programs(model)
        self._programs = self._used[trees]

    @property
    def adapters(self) -> tuple[str, ...]:
        """The names of the modules that `use` may name."""
        return tuple(self._of_checkpoint().adapters)

    def _of_checkpoint(self) -> ModulesOf:
        if self._modules is None:
            members = self._model.members
            if len(members) != 1:
                raise InputError("modules are of one model, and this is an ensemble")
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
        **decoding: Any,
    ) -> list[str]:
        """The best output for each text.

        Args:
          texts: the inputs; an empty one is the end-of-sequence token alone.
          prompts: what the outputs begin with, one for all or one for each; of as many tokens as
            an input at most.
          seeds: of texts that are sampled by one of their own, in place of seed and place in the
            list: text i gets what `generate([text], seed=seeds[i])` gives. None has none.
          **decoding: fields of `t5x_lite.api.Decoding`, such as num_beams=4 or temperature=0.8.

        Raises:
          InputError: the texts are no sequence, the choices contradict each other, or a score is no
            number, which broken weights cause.
        """
        found = self._predictions(texts, prompts=prompts, seeds=seeds, **decoding)
        return [best.text for best, *_ in found]

    def predict(
        self,
        texts: Sequence[str | tuple[str, str] | Mapping[str, Any]],
        *,
        prompts: str | Sequence[str] = "",
        seeds: Sequence[int | None] | None = None,
        head: str | None = None,
        **options: Any,
    ) -> list[Any]:
        """Answer each text: by what the model writes, or by a head of an encoder.

        What is sampled depends on a text's place in the list, or on its own seed, and not on the
        other texts.

        Args:
          texts: the inputs. A head also reads a pair (text, second text), for question answering
            (question, context), or a dict such as {"inputs": ..., "choices": [...]}.
          prompts: as for `generate`; only of a model that writes text.
          seeds: as for `generate`; only of a model that writes text.
          head: of an encoder; None is the one that its objective trained, or the only one.
          **options: of a model that writes text the fields of `t5x_lite.api.Decoding`; of a head
            probabilities, threshold, doc_stride, longest_answer and impossible_answers
            (`t5x_lite.inference.answers.Asked`).

        Returns:
          Of a model that writes text, the num_return best outputs of each as `Prediction`s, best
          first. Of a head, a dict for each text, {"prediction": ...} as `t5x-lite predict` writes
          it.

        Raises:
          InputError: if a text is not one for the head, or an option is not one for the model.
        """
        members = self._model.members
        if head is None and not all(answering_heads(one.experiment) for one in members):
            return self._predictions(texts, prompts=prompts, seeds=seeds, **options)
        if prompts or seeds is not None:
            raise InputError("prompts and seeds are for models that write text, and a head answers")
        asked = _asked(options)
        answerers = self._programs.answerers
        if (head, asked) not in answerers:
            answerers[head, asked] = self._model.answerer(
                batch_size=self._batch_size, head=head, asked=asked
            )
        answerer = answerers[head, asked]
        records = _records(texts, answerer)
        for i, record in enumerate(records):
            check_record(answerer.head, record, where=f"text {i}")
        encoded = answerer.encode(records)
        self._tell_cut([i for i, one in enumerate(encoded) if one.cut], length=answerer.length)
        return answerer.answers(encoded)

    def _predictions(
        self,
        texts: Sequence[Any],
        *,
        prompts: str | Sequence[str] = "",
        seeds: Sequence[int | None] | None = None,
        **decoding: Any,
    ) -> list[list[Prediction]]:
        how = _decoding(decoding)
        generators = self._programs.generators
        if how not in generators:
            generators[how] = self._model.generator(how, batch_size=self._batch_size)
        given = [prompts] * len(texts) if isinstance(prompts, str) else list(prompts)
        if len(given) != len(texts):
            raise InputError(f"there are {len(texts)} texts and {len(given)} prompts")
        _check_seeds(seeds, num=len(texts))
        found = self._model.predictions(
            generators[how],
            self._inputs(texts),
            prompts=self._model.prompts(given),
            seeds=seeds,
        )
        for i, predictions in enumerate(found):
            check_finite(f"text {i}", "the score", *(one.score for one in predictions))
        return found

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """The log-likelihood of each (input, target): a sum over the target's tokens and its EOS.

        An empty target is EOS alone, one token. A cross-encoder gives its raw score of each (query,
        passage).
        """
        if (scorer := self._cross_encoder()) is not None:
            return scorer.scores(list(pairs)).tolist()
        targets = self._model.targets([target for _, target in pairs])
        inputs = self._inputs([text for text, _ in pairs])
        scores = self._get_scorer().run(self._model.params, inputs, targets)
        for i, score in enumerate(scores):
            check_finite(f"pair {i}", "the log-likelihood", score)
        return scores

    def rank(self, texts: Sequence[str], candidates: Sequence[str]) -> list[Ranking]:
        """The likeliest of the candidates after each text, and the scores of all.

        A cross-encoder ranks the candidates as passages for each text, by its raw scores.
        """
        _check_texts(texts)
        _check_texts(candidates)
        if not candidates:
            raise InputError("rank needs at least one candidate")
        if (scorer := self._cross_encoder()) is not None:
            pairs = [(text, candidate) for text in texts for candidate in candidates]
            table = scorer.scores(pairs).reshape(len(texts), len(candidates))
            return [Ranking(candidates[int(np.argmax(row))], tuple(row.tolist())) for row in table]
        found = Ranker(self._get_scorer()).run(
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
    ) -> np.ndarray: ...

    @overload
    def encode(
        self, texts: Sequence[str], *, per_token: Literal[True], role: Role = "query"
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
    ) -> np.ndarray | list[np.ndarray]:
        """The encoder's output.

        Args:
          texts: the inputs.
          per_token: whether the states are given token by token, and not as one vector of a text.
          pooling: "mean" over a text's tokens and those that begin and end it, [CLS], [SEP] or EOS;
            or "cls", the state of [CLS], which T5 has not. None is what the checkpoint says, such
            as that of a retriever, or else "mean".
          normalize: whether vectors have length 1; None is what the checkpoint says, or else False.
          dimensions: number of leading dimensions that a vector keeps; None keeps all.
          role: what the texts are, for a retriever with two encoders or two projections.

        Returns:
          float32 [n, d_model], a vector of each text; or per_token an array [tokens, d_model] for
          each text.

        Raises:
          InputError: the model has no encoder or no [CLS] that is asked for, or is an ensemble.
        """
        _check_texts(texts)
        if dense_head(self._model.members[0].experiment) is None:
            pooling, normalize = pooling or "mean", bool(normalize)
        how = (pooling, normalize, dimensions)
        encoders = self._programs.encoders
        if how not in encoders:
            encoder = self._model.encoder(
                pooling=pooling, normalize=normalize, dimensions=dimensions
            )
            encoders[how] = encoder, encoder.embedder(batch_size=self._batch_size)
        encoder, embedder = encoders[how]
        begins = encoder.begins_with(None, None)
        inputs, cut = encoder.rows([begins + text for text in texts])
        self._tell_cut(cut, length=encoder.length)
        if per_token:
            states = embedder.states(self._model.params, inputs, role=role)
        else:
            states = embedder.run(self._model.params, inputs, role=role)
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
                "%d inputs were cut to %d tokens, text %d the first (load(..., inputs_length=N))",
                len(cut),
                length,
                cut[0],
            )

    def _cross_encoder(self) -> CrossEncoder | None:
        if self._programs.pairs is None and all(map(scores_texts, self._model.members)):
            self._programs.pairs = self._model.pair_scorer(batch_size=self._batch_size)
        return self._programs.pairs

    def _get_scorer(self) -> Scorer:
        if self._programs.scorer is None:
            self._programs.scorer = self._model.scorer(batch_size=self._batch_size)
        return self._programs.scorer


def _decoding(options: Mapping[str, Any]) -> Decoding:
    """The choices that keywords name."""
    known = [field.name for field in dataclasses.fields(Decoding)]
    for name in options:
        if name not in (*known, "max_length"):  # of the latter `Decoding` says the new name
            near = did_you_mean(name, known) or f"; there are {', '.join(known)}"
            raise InputError(f"unknown keyword {name}{near}")
    return Decoding(**options)


def _asked(options: Mapping[str, Any]) -> Asked:
    """The options of a head's answers."""
    known = [field.name for field in dataclasses.fields(Asked)]
    for name in options:
        if name not in known:
            near = did_you_mean(name, known) or f"; a head has {', '.join(known)}"
            raise InputError(f"unknown keyword {name}{near}")
    return Asked(**options)


def _records(
    texts: Sequence[str | tuple[str, str] | Mapping[str, Any]], answerer: Answerer
) -> list[Mapping[str, Any]]:
    """The texts of a call as the records that a head reads."""
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
        raise InputError(f"there are {num} texts and {len(seeds)} seeds")
    for seed in seeds:
        if seed is not None:
            Decoding(seed=seed)


def _check_texts(texts: Sequence[Any]) -> None:
    """A str is a sequence of strings as well, and never the one that was meant."""
    if isinstance(texts, str):
        raise InputError(f"give a list of texts, not one: [{texts[:40]!r}]")
