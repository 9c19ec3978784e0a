"""Zero-shot retrieval evaluation of vectors or heads, and a checkpoint as a model for MTEB.

Evaluation of document retrieval, by single vectors or by several heads.

    evaluator = RetrievalEvaluator(
        parts.bind_model,
        text_rows(vocabulary, begins=True),
        Retrieval(directory="scifact", pooling="mean"),
        split="test",
    )
    evaluator.run(params)       # {"ndcg_at_10": 0.6, "mrr_at_10": 0.5, "recall_at_100": 0.9}

The directory is in BEIR's format. Each query with relevance judgments is scored against all
documents. Documents are read, encoded and discarded in chunks, so a corpus may be larger than
memory. Documents with equal scores are ranked in corpus order.

Source: Thakur et al. 2021, arXiv:2104.08663.

`evaluation.retrieval.ways` ranks a corpus by several heads, with all outputs in memory:

    encode = functools.partial(embedder.several, params)    # rows -> outputs of the heads
    rank_all(HeadCorpus(encode, chunks), encode(queries), Ways(), num=len(queries))
    # {"dense": [[(document, score), ...] of each query], "lexical": ..., ...}

The ways "multi_vector" and "all" keep a vector for each token, hundreds of kilobytes per document.
`embed --heads` and `hybrid` store the outputs in files instead.

Adapter of a checkpoint to the model interface of MTEB, version 1 or 2.

    model = t5x_lite.evaluate.retrieval.encoder("work/retriever")
    mteb.evaluate(model, tasks=mteb.get_tasks(tasks=["NFCorpus"]))     # version 2
    mteb.MTEB(tasks=mteb.get_tasks(tasks=["NFCorpus"])).run(model)     # version 1
    model.encode(["dogs bark"], prompt_name="query")                   # float32 [1, D]

This package does not depend on MTEB. Version 2 passes batches {"text": [...]} and reads the
object's `mteb_model_meta`; version 1 passes lists of texts. Both mark texts as queries or
documents. If the checkpoint has a prompt for queries or documents, the prompt is prepended to each
text.
"""

import contextlib
import dataclasses
import functools
import hashlib
import importlib
import itertools
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float

from t5x_lite.checkpoints import items
from t5x_lite.config import Experiment
from t5x_lite.config.evaluation import Retrieval, Ways
from t5x_lite.core.errors import InputError
from t5x_lite.core.sharding import MeshConfig, make_mesh
from t5x_lite.core.trees import Params
from t5x_lite.core.workers import Prefetch, counting
from t5x_lite.data.config import text_lengths
from t5x_lite.data.formats import retrieval_sets
from t5x_lite.data.vocabularies.encoder_tokens import TextRows
from t5x_lite.data.vocabularies.loading import Vocabulary
from t5x_lite.inference.checkpoint import Checkpoint
from t5x_lite.inference.generate import Bind
from t5x_lite.inference.loading import Step
from t5x_lite.inference.text_encoder import (
    Embedder,
    HeadEmbedder,
    Several,
    TextEncoder,
    Vectors,
    check_encodes,
    dense_head,
    head_embedder,
    most_tokens,
    rows_of,
    trained_length,
    whole_of,
)
from t5x_lite.metrics import runs as retrieval_metrics
from t5x_lite.models.base import hidden_size
from t5x_lite.models.vector_heads import Dense, Pooling
from t5x_lite.objectives.learner import Learner
from t5x_lite.retrieval.exact import ExactSearch
from t5x_lite.retrieval.fusion import Finder

_logger = logging.getLogger(__name__)


class Chunk(NamedTuple):
    """Documents that are encoded together.

    Attributes:
      ids: ids of the documents.
      rows: int32 token ids of each document.
    """

    ids: list[str]
    rows: list[np.ndarray]


class HeadCorpus:
    """Outputs of several retrieval heads for all documents, kept in memory.

    Args:
      encode: function that returns the outputs of all needed heads for a list of token rows.
      chunks: documents, in chunks.

    Raises:
      InputError: if a vector has a NaN or infinite value.
    """

    def __init__(self, encode: Callable[[list[np.ndarray]], Several], chunks: Iterable[Chunk]):
        self.ids: list[str] = []
        dense: list[np.ndarray] = []
        self._terms: list[dict[int, float]] | None = None
        self._vectors: list[np.ndarray] | None = None
        for chunk in chunks:
            found = encode(chunk.rows)
            self.ids += chunk.ids
            if found.dense is not None:
                dense.append(found.dense)
            if found.terms is not None:
                self._terms = [*(self._terms or []), *found.terms]
            if found.vectors is not None:
                self._vectors = [*(self._vectors or []), *found.vectors]
        self.dense: np.ndarray | None = np.concatenate(dense) if dense else None

    def has(self, way: str) -> bool:
        """Return True if the corpus has outputs of the given head, such as "lexical"."""
        made = {"dense": self.dense, "lexical": self._terms, "multi_vector": self._vectors}
        return made[way] is not None

    def terms(self) -> Iterator[Mapping[int, float]]:
        """Yield the term weights of each document: token id -> weight."""
        return iter(self._terms or [])

    def vectors(self, number: int) -> np.ndarray:
        """Return the token vectors of a document."""
        assert self._vectors is not None
        return self._vectors[number]


def rank_all(
    corpus: HeadCorpus, queries: Several, ways: Ways, *, num: int
) -> dict[str, list[list[tuple[str, float]]]]:
    """Return the best documents of a corpus and their scores for each query, by ranking method."""
    finder = Finder(corpus, ways)
    made: dict[str, list[list[tuple[str, float]]]] = {name: [] for name in ways.names}
    for number in range(num):
        rankings = finder.rank(
            _of(queries.dense, number), _of(queries.terms, number), _of(queries.vectors, number)
        )
        for name, scored in rankings.items():
            made[name].append([(corpus.ids[document], score) for document, score in scored])
    return made


def _of(made: Sequence[Any] | np.ndarray | None, number: int) -> Any:
    return None if made is None else made[number]


DEPTH = 100
"""Number of documents in a ranking, for Recall@100."""
CHUNK_BATCHES = 32
"""Number of batches of documents in a chunk, which is sorted by length."""
_NOBODY = contextlib.nullcontext()


class Found(NamedTuple):
    """Document id and score in a ranking."""

    document: str
    score: float


class RetrievalEvaluator:
    """Evaluator of retrieval on a BEIR directory, reusable for many checkpoints.

    Attributes:
      runs: ranking method -> query -> ranked documents of the last run; "" is the method without
        `evaluation.retrieval.ways`.
      per_query: ranking method -> query -> metrics of the last run.
    """

    def __init__(
        self,
        bind: Bind,
        rows: TextRows,
        settings: Retrieval,
        *,
        split: str = "test",
        batch_size: int = 32,
        max_length: int = 512,
        mesh: Mesh | None = None,
        whole: Bind | None = None,
        heads: HeadEmbedder | None = None,
    ):
        """Read queries and relevance judgments, and read the corpus once to check it."""
        retrieval_metrics.check_trec_eval()
        self._settings, self._rows = settings, rows
        self._lengths = {
            "query": _length(settings.query_length, max_length, name="query_length", rows=rows),
            "document": _length(
                settings.document_length, max_length, name="document_length", rows=rows
            ),
        }
        self._judged = _read(settings.directory, split)
        if jax.process_index() == 0:
            self._tell_judged()
        self._embedder = Embedder(
            bind,
            batch_size=batch_size,
            pooling="mean" if settings.pooling is None else settings.pooling,
            normalize=settings.normalize is not False,
            pad_id=rows.pad_id,
            max_length=max_length,
            mesh=mesh,
            whole=whole,
        )
        self._chunk, self._mesh = CHUNK_BATCHES * batch_size, mesh
        self._heads = heads
        self.runs: dict[str, dict[str, list[Found]]] = {}
        self.per_query: dict[str, dict[str, dict[str, float]]] = {}

    def names(self) -> list[str]:
        return [
            _named(way, name)
            for way in self._settings.ways or ("",)
            for name in retrieval_metrics.BEIR_METRICS
        ]

    def run(self, params: Params) -> dict[str, float]:
        """Return nDCG@10, MRR@10 and Recall@100 of each ranking method, averaged over queries."""
        names = list(self._judged.queries)
        texts = [
            (self._settings.query_prefix or "") + text for text in self._judged.queries.values()
        ]
        queries = self._rows(texts, length=self._lengths["query"])
        search = self._by_vector if self._heads is None else self._by_heads
        runs, cut = search(params, names, queries.rows)
        self._tell_cut(len(queries.longer), cut)
        self.runs = {
            way: {
                name: [Found(*one) for one in found]
                for name, found in zip(names, found_by, strict=True)
            }
            for way, found_by in runs.items()
        }
        self._check_rankings()
        for way, rankings in self.runs.items():
            found = {q: [one.document for one in best] for q, best in rankings.items()}
            self.per_query[way] = retrieval_metrics.by_trec_eval(self._judged.judgements, found)
        return {
            _named(way, name): value
            for way, per_query in self.per_query.items()
            for name, value in retrieval_metrics.means(per_query).items()
        }

    def _by_vector(
        self, params: Params, names: Sequence[str], queries: Sequence[np.ndarray]
    ) -> tuple[dict[str, list[Any]], int]:
        search = ExactSearch(
            self._embedder.run(params, queries),
            depth=DEPTH,
            names=[name if self._drops(name) else None for name in names],
            mesh=self._mesh,
        )
        cut = 0
        for documents, rows, longer in self._chunks():
            search.add(self._embedder.run(params, rows, role="passage"), documents)
            cut += longer
        return {"": list(search.results())}, cut

    def _by_heads(
        self, params: Params, names: Sequence[str], queries: Sequence[np.ndarray]
    ) -> tuple[dict[str, list[Any]], int]:
        assert self._heads is not None
        cut = 0

        def chunks() -> Iterator[Chunk]:
            nonlocal cut
            for documents, rows, longer in self._chunks():
                cut += longer
                yield Chunk(documents, rows)

        encode = functools.partial(self._heads.several, params)
        corpus, asked = HeadCorpus(encode, chunks()), encode(queries)
        ranked = rank_all(corpus, asked, self._settings.rankings(), num=len(names))
        return {
            way: [
                [one for one in found if one[0] != name or not self._drops(name)][:DEPTH]
                for name, found in zip(names, each, strict=True)
            ]
            for way, each in ranked.items()
        }, cut

    def _chunks(self) -> Iterator[tuple[list[str], list[np.ndarray], int]]:
        shown = counting("searching", unit="documents") if jax.process_index() == 0 else _NOBODY
        with (
            contextlib.closing(Prefetch(self._documents(), depth=2)) as chunks,
            shown as advance,
        ):
            for documents, rows, longer in chunks:
                yield documents, rows, longer
                if advance is not None:
                    advance(len(documents))

    def _drops(self, query: str) -> bool:
        """Return True if the query's own document must be removed from the ranking."""
        same_ids = self._settings.same_ids
        return same_ids == "drop" or (same_ids == "auto" and query in self._judged.twins)

    def _tell_judged(self) -> None:
        directory, same_ids = self._settings.directory, self._settings.same_ids
        judged, twins = self._judged, len(self._judged.twins)
        if judged.missing:
            _logger.warning(
                "%s: corpus.jsonl lacks %d judged documents; counting them as not found",
                directory,
                judged.missing,
            )
        if twins and same_ids == "keep":
            _logger.warning(
                "%s: %d queries are also documents with the same id and text, and find themselves; "
                "use --evaluation.retrieval.same-ids auto to exclude them, as BEIR does",
                directory,
                twins,
            )
        if twins and same_ids == "auto":
            _logger.info(
                "%s: %d queries are also documents with the same id and text; excluding each from "
                "its own ranking (evaluation.retrieval.same_ids)",
                directory,
                twins,
            )
        if judged.namesakes and same_ids == "auto":
            _logger.info(
                "%s: %d queries share their id with a document of different text; keeping these "
                "documents (--evaluation.retrieval.same-ids drop excludes them, as BEIR does)",
                directory,
                judged.namesakes,
            )

    def _documents(self) -> Iterator[tuple[list[str], list[np.ndarray], int]]:
        """Yield (document ids, token rows, number of truncated documents) of each corpus chunk."""
        records = retrieval_sets.read_corpus(self._settings.directory)
        while some := list(itertools.islice(records, self._chunk)):
            texts = [(self._settings.document_prefix or "") + record.text for record in some]
            rows, longer = self._rows(texts, length=self._lengths["document"])
            yield [record.id for record in some], rows, len(longer)

    def _tell_cut(self, queries: int, documents: int) -> None:
        if self.runs or jax.process_index():
            return
        for kind, number in (("query", queries), ("document", documents)):
            if number:
                _logger.info(
                    "truncated %d texts of kind %s to %d tokens (evaluation.retrieval.%s_length)",
                    number,
                    kind,
                    self._lengths[kind],
                    kind,
                )

    def _check_rankings(self) -> None:
        """Raise InputError if a ranking contains a document id twice."""
        for best in (best for rankings in self.runs.values() for best in rankings.values()):
            names = [one.document for one in best]
            if len(set(names)) < len(names):
                twice = next(name for name in names if names.count(name) > 1)
                raise InputError(
                    f"{self._settings.directory}: corpus.jsonl has the id {twice!r} more than once"
                )


def _named(way: str, metric: str) -> str:
    return f"{way}/{metric}" if way else metric


def trec_lines(rankings: Mapping[str, Sequence[Found]]) -> Iterator[str]:
    """Yield a ranking in trec_eval's format: query, Q0, document, rank, score, run name.

    trec_eval sorts documents with equal scores by id.
    """
    for query, best in rankings.items():
        for rank, found in enumerate(best, start=1):
            yield f"{query} Q0 {found.document} {rank} {found.score!r} t5x_lite\n"


def _read(directory: str, split: str) -> retrieval_sets.Judged:
    there = retrieval_sets.beir_splits(directory, field="evaluation.retrieval.directory")
    if split not in there:
        raise InputError(
            f"directory {directory} has relevance judgments for the splits {', '.join(there)}, "
            f"but none for split {split!r}; set --evaluation.split {there[-1]}"
        )
    return retrieval_sets.read_judged(directory, split)


def _length(given: int | None, most: int, *, name: str, rows: TextRows) -> int:
    length = most if given is None else given
    if not rows.shortest < length <= most:
        raise InputError(
            f"evaluation.retrieval.{name} must be above {rows.shortest} (the number of special "
            f"tokens) and at most {most} (the model's maximum), but got {length}"
        )
    return length


def retrieval_evaluator(
    experiment: Experiment,
    learner: Learner,
    vocabulary: Vocabulary,
    settings: Retrieval,
    *,
    split: str,
    batch_size: int,
    mesh: Mesh | None = None,
) -> RetrievalEvaluator:
    """Build an evaluator of document retrieval for the parameters of a learner.

    evaluator = retrieval_evaluator(
        experiment, learner_of(experiment), vocabulary, Retrieval(directory="scifact"),
        split="test", batch_size=64,
    )
    evaluator.run(state.params)["ndcg_at_10"]
    """
    check_encodes(learner, "of evaluation.retrieval")
    vectors = Vectors.of(experiment, pooling=settings.pooling, normalize=settings.normalize)
    data, most = experiment.data, most_tokens(experiment)
    own, longest = text_lengths(data), trained_length(experiment)
    trained = {f"{role}_length": own.get(role, longest) for role in ("query", "document")}
    lengths = {name: min(length, most or length) for name, length in trained.items()}
    asked = {name: getattr(settings, name) for name in lengths}
    lengths |= {name: length for name, length in asked.items() if length is not None}
    head = dense_head(experiment) or Dense()
    prompts = {"query_prefix": ("query",), "document_prefix": ("document", "passage", "corpus")}
    begins = {
        name: head.prompt(*names) if getattr(settings, name) is None else getattr(settings, name)
        for name, names in prompts.items()
    }
    heads = None
    if settings.ways:
        heads = head_embedder(
            *(experiment, learner, vocabulary, settings.rankings().heads),
            vectors=vectors,
            batch_size=batch_size,
            mesh=mesh,
            where="evaluation.retrieval.ways",
        )
    return RetrievalEvaluator(
        learner.bind_model,
        rows_of(experiment, vocabulary),
        dataclasses.replace(
            settings, pooling=vectors.pooling, normalize=vectors.normalize, **lengths, **begins
        ),
        split=split,
        batch_size=batch_size,
        max_length=max(lengths.values()) if most is None else most,
        mesh=mesh,
        whole=whole_of(experiment, learner),
        heads=heads,
    )


_SAME = {
    "passage": ("passage", "document", "corpus"),
    "document": ("document", "passage", "corpus"),
}


def encoder(
    checkpoint: str,
    *,
    step: Step = None,
    pooling: Pooling | None = None,
    normalize: bool | None = None,
    inputs_length: int | None = None,
    batch_size: int = 32,
    name: str | None = None,
) -> "MTEBEncoder":
    """Load a checkpoint as a model for MTEB.

    Args:
      checkpoint: checkpoint directory or work directory.
      step: step of a work directory; default: the last step.
      pooling: pooling of token vectors; default: the checkpoint's pooling.
      normalize: True if vectors get length 1; default: the checkpoint's setting.
      inputs_length: maximum tokens of a text; default: the checkpoint's length.
      batch_size: number of texts encoded at once.
      name: model name in MTEB's results, "organization/model"; default: "t5x_lite/DIRECTORY".

    Raises:
      InputError: if the checkpoint is damaged or has no encoder, or the name has no "/".
    """
    if name is not None and name.count("/") != 1:
        raise InputError(
            f'the argument name must have the form "organization/model" for MTEB, but is {name!r}'
        )
    loaded = Checkpoint.load(
        [checkpoint], step=step, mesh=make_mesh(MeshConfig()), inputs_length=inputs_length
    ).encoder(pooling=pooling, normalize=normalize)
    return MTEBEncoder(loaded, batch_size=batch_size, name=name)


_META = "mteb.models.model_meta"
"""Module of the class ModelMeta in MTEB 2."""
_PASSAGES = frozenset({"passage", "document", "corpus"})
"""Prompt names and prompt types that mark a text as a passage."""


class MTEBEncoder:
    """Model with MTEB's interface: vectors of texts and their similarities.

    Args:
      encoder: text encoder of the checkpoint.
      batch_size: number of texts encoded at once.
      name: model name in MTEB's results; default: "t5x_lite/" and the name of the work directory.
    """

    def __init__(self, encoder: TextEncoder, *, batch_size: int, name: str | None = None):
        self._encoder = encoder
        self._embedder = encoder.embedder(batch_size=batch_size)
        self._name = name

    @functools.cached_property
    def mteb_model_meta(self) -> Any:
        """MTEB's ModelMeta for this checkpoint.

        MTEB stores results by name and revision, so the revision is a digest of the parameters and
        of all options that change vectors.
        """
        meta = _model_meta()
        directory = self._encoder.loaded.directory
        in_workdir = directory.parent.name == "checkpoints"
        vectors, experiment = self._encoder.vectors, self._encoder.loaded.experiment
        head = dense_head(experiment) or Dense()
        identity = [items.digest(directory), repr(vectors), str(self._encoder.length)]
        own: dict[str, Any] = {
            "name": self._name
            or f"t5x_lite/{(directory.parent.parent if in_workdir else directory).name}",
            "revision": hashlib.sha256("\n".join(identity).encode()).hexdigest()[:16],
            "framework": ["JAX"] if meta.__module__ == _META else [],  # version 1 lacks the name
            "max_tokens": self._encoder.length,
            "embed_dim": head.projection or hidden_size(experiment.model),
            "similarity_fn_name": "cosine" if vectors.normalize else "dot",
            "open_weights": False,
            "use_instructions": any(prompt.text for prompt in head.prompts),
            "n_parameters": sum(int(x.size) for x in jax.tree.leaves(self._encoder.params)),
        }
        fields = meta.model_fields
        required = {field: None for field, info in fields.items() if info.is_required()}
        return meta(**required | {key: own[key] for key in own if key in fields})

    def encode(
        self,
        inputs: Iterable[Any] | None = None,
        *,
        sentences: Iterable[Any] | None = None,
        prompt_name: str | None = None,
        task_metadata: Any = None,
        task_name: str | None = None,
        prompt_type: Any = None,
        **others: Any,
    ) -> Float[np.ndarray, "n D"]:
        """Return the vectors of texts, in order.

        A prompt is prepended to each text: the first one that the checkpoint has under
        `prompt_name`, "TASK-TYPE", "TASK" or "TYPE", where TYPE is "query" or "document".

        Args:
          inputs: texts, or batches {"text": [...]}.
          sentences: alternative name of `inputs`.
          prompt_name: name of a prompt of the checkpoint; unknown names are ignored.
          task_metadata: description of the task in MTEB 2.
          task_name: name of the task in MTEB 1.
          prompt_type: "query" or "document".
          **others: ignored options, such as MTEB's hf_split, hf_subset and batch_size.

        Raises:
          InputError: if a text is not a string, or no inputs are given.
        """
        del others
        given = sentences if inputs is None else inputs
        if given is None:
            raise InputError("encode() requires texts or batches of texts as inputs, but got None")
        kind = str(getattr(prompt_type, "value", prompt_type or ""))
        kinds = _SAME.get(kind, (kind,))
        described = task_metadata
        tasks = [str(each) for each in (getattr(described, "name", None), task_name) if each]
        names = [prompt_name or ""]
        names += [f"{task}-{each}" for task in tasks for each in kinds if each]
        known = (self._encoder.known_prompt(name) for name in (*names, *tasks, *kinds) if name)
        begins = self._encoder.begins_with(None, next((name for name in known if name), None))
        texts = [begins + text for text in _texts(given)]
        rows, _ = self._encoder.rows(texts)
        role = "passage" if _PASSAGES & {prompt_name, kind} else "query"
        return self._embedder.run(self._encoder.params, rows, role=role)

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Return all pairwise dot products as [n, m]; they are cosines if vectors have length 1.

        The result is a torch tensor if MTEB is loaded, and otherwise a NumPy array.
        """
        return _for_mteb(np.atleast_2d(_array(embeddings1)) @ np.atleast_2d(_array(embeddings2)).T)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Return the dot products of corresponding vectors as [n].

        Raises:
          InputError: if the shapes differ.
        """
        one, other = (np.atleast_2d(_array(each)) for each in (embeddings1, embeddings2))
        if one.shape != other.shape:
            raise InputError(
                f"similarity_pairwise needs two arrays of equal shape, but got {one.shape} and "
                f"{other.shape}"
            )
        return _for_mteb(np.einsum("nd,nd->n", one, other))


def _model_meta() -> Any:
    """Return MTEB's class ModelMeta from version 1 or 2."""
    try:
        place = importlib.import_module(_META)
    except ModuleNotFoundError as error:
        if error.name != _META:
            raise
        place = importlib.import_module("mteb.model_meta")
    return place.ModelMeta


def _array(vectors: Any) -> np.ndarray:
    return np.asarray(vectors, np.float32)


def _for_mteb(scores: np.ndarray) -> Any:
    """Convert scores to a torch tensor if MTEB and torch are loaded, as MTEB requires."""
    torch = sys.modules.get("torch") if "mteb" in sys.modules else None
    return scores if torch is None else torch.from_numpy(np.ascontiguousarray(scores))


def _texts(sentences: Iterable[Any]) -> Iterator[str]:
    if isinstance(sentences, str | bytes | Mapping):
        raise InputError(
            f"encode() requires a list of texts or batches, but got {type(sentences).__name__}"
        )
    for one in sentences:
        if isinstance(one, Mapping):
            if "text" not in one:
                raise InputError(
                    f'a batch must have the key "text", but has the keys {sorted(one)}'
                )
            batch = one["text"]
            yield from [batch] if isinstance(batch, str) else batch
        elif isinstance(one, str):
            yield one
        else:
            raise InputError(f"a text must be a string, but got {type(one).__name__}")
