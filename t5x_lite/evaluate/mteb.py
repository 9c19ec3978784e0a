"""Adapter of a checkpoint to the model interface of MTEB, version 1 or 2.

    model = t5x_lite.evaluate.mteb.encoder("work/retriever")
    mteb.evaluate(model, tasks=mteb.get_tasks(tasks=["NFCorpus"]))     # version 2
    mteb.MTEB(tasks=mteb.get_tasks(tasks=["NFCorpus"])).run(model)     # version 1
    model.encode(["dogs bark"], prompt_name="query")                   # float32 [1, D]

This package does not depend on MTEB. Version 2 passes batches {"text": [...]} and reads the
object's `mteb_model_meta`; version 1 passes lists of texts. Both mark texts as queries or
documents. If the checkpoint has a prompt for queries or documents, the prompt is prepended to each
text.
"""

import functools
import hashlib
import importlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from t5x_lite.checkpoints import manifest
from t5x_lite.core.errors import InputError
from t5x_lite.core.sharding import MeshConfig, make_mesh
from t5x_lite.inference.checkpoint import Checkpoint
from t5x_lite.inference.loading import Step
from t5x_lite.inference.text_encoder import TextEncoder, dense_head
from t5x_lite.models.base import hidden_size
from t5x_lite.models.towers import Pooling
from t5x_lite.models.vector_heads import Dense

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
        raise InputError(f'name must have the form "organization/model" for MTEB, but got {name!r}')
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
        identity = [manifest.digest(directory), repr(vectors), str(self._encoder.length)]
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
            raise InputError("encode needs texts or batches of texts as inputs, but got None")
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
            f"encode needs a list of texts or batches, but got {type(sentences).__name__}"
        )
    for one in sentences:
        if isinstance(one, Mapping):
            if "text" not in one:
                raise InputError(f'a batch needs the key "text", but has {sorted(one)}')
            batch = one["text"]
            yield from [batch] if isinstance(batch, str) else batch
        elif isinstance(one, str):
            yield one
        else:
            raise InputError(f"a text must be a string, but got {type(one).__name__}")
