"""A checkpoint as MTEB and what is like it ask for one: an object with `encode`.

    model = t5x_lite.run.mteb.encoder("work/retriever")
    mteb.MTEB(tasks=[...]).run(model)
    model.encode(["dogs bark"], prompt_name="query")        # float32 [1, D]

MTEB is not imported. It gives texts as a list, or as batches {"text": [...]} (from its version 2
on), and says whether they are queries or documents by `prompt_type` or `prompt_name`: then the
checkpoint's prompt of that name, if it has one, is put before them.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from t5x_lite.errors import InputError
from t5x_lite.models.pooling import Pooling
from t5x_lite.run.best_step import Step
from t5x_lite.run.text_encoder import TextEncoder
from t5x_lite.sharding import MeshConfig, make_mesh

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
) -> "MTEBEncoder":
    """Reads a checkpoint.

    Args: as `run.text_encoder.TextEncoder.load`.

    Raises:
      InputError: it is damaged or has no encoder.
    """
    loaded = TextEncoder.load(
        checkpoint,
        step=step,
        mesh=make_mesh(MeshConfig()),
        length=inputs_length,
        pooling=pooling,
        normalize=normalize,
    )
    return MTEBEncoder(loaded, batch_size=batch_size)


_PASSAGES = frozenset({"passage", "document", "corpus"})
"""Names of prompts and types whose texts a passage's encoder reads."""


class MTEBEncoder:
    """Texts to vectors.

    Args:
      encoder: the checkpoint.
      batch_size: texts encoded at once.
    """

    def __init__(self, encoder: TextEncoder, *, batch_size: int):
        self._encoder = encoder
        self._embedder = encoder.embedder(batch_size=batch_size)

    def encode(
        self,
        sentences: Iterable[Any],
        *,
        prompt_name: str | None = None,
        task: Any = None,
        prompt_type: Any = None,
        **others: Any,
    ) -> Float[np.ndarray, "n D"]:
        """The vectors of texts, in order.

        Args:
          sentences: texts, or batches of them.
          prompt_name: of the checkpoint's prompts; one that it lacks is none.
          task: not looked at.
          prompt_type: "query" or "document", where no name is given.
          **others: not looked at, such as MTEB's task_metadata and hf_split.

        Raises:
          InputError: a text is no string.
        """
        del task, others
        kind = str(getattr(prompt_type, "value", prompt_type or ""))
        names = (prompt_name,) if prompt_name else _SAME.get(kind, (kind,))
        known = (self._encoder.known_prompt(name) for name in names)
        begins = self._encoder.begins_with(None, next((name for name in known if name), None))
        texts = [begins + text for text in _texts(sentences)]
        rows, _ = self._encoder.rows(texts)
        role = "passage" if _PASSAGES & {prompt_name, kind} else "query"
        return self._embedder.run(self._encoder.params, rows, role=role)


def _texts(sentences: Iterable[Any]) -> Iterator[str]:
    for one in sentences:
        if isinstance(one, Mapping):
            if "text" not in one:
                raise InputError(f'a batch must have "text", and has {sorted(one)}')
            batch = one["text"]
            yield from [batch] if isinstance(batch, str) else batch
        elif isinstance(one, str):
            yield one
        else:
            raise InputError(f"a text must be a string, got {type(one).__name__}")
