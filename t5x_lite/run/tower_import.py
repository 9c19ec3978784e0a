"""A retriever of two directories, in: what `run.tower_export`, RetroMAE and Tevatron write.

    SOURCE/query_model/        an encoder; perhaps with the modules of sentence-transformers
    SOURCE/passage_model/      its like
    SOURCE/pooler.pt           perhaps (`interop.pooler`)

Two encoders become the model and the tower of passages, towers/passage. Where all their weights are
equal they are one encoder, and only what projects its states may differ.
"""

import dataclasses
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import numpy as np

from t5x_lite.config import Experiment
from t5x_lite.data.layouts import Groups
from t5x_lite.errors import InputError
from t5x_lite.heads.base import HEADS
from t5x_lite.heads.dense import Dense, Role
from t5x_lite.interop import encoder_families
from t5x_lite.interop.hf_config import CONFIG, read_config
from t5x_lite.interop.pooler import POOLER, Pooler, read_pooler
from t5x_lite.interop.rules import LazyArray, Source
from t5x_lite.models.towers import TOWERS
from t5x_lite.objectives.contrastive import DOT, Contrastive
from t5x_lite.run.encoder_interchange import Release, read_release

_MODEL = "model/"
_HEAD = f"{HEADS}{Dense().name}/"
_logger = logging.getLogger(__name__)


def directories_of(source: Path) -> dict[Role, Path]:
    """The directories of the two encoders; {} where the source is a model itself.

    Args:
      source: a directory.

    Raises:
      InputError: there is one of the two alone.
    """
    found: dict[Role, Path] = {role: source / f"{role}_model" for role in get_args(Role)}
    if (source / CONFIG).exists() or not any(path.is_dir() for path in found.values()):
        return {}
    for role, path in found.items():
        if not path.is_dir():
            raise InputError(
                f"{source}: has no {path.name}, the encoder of the {role} side, and the other one "
                "is here; import that one by itself, or bring both"
            )
    return found


@dataclasses.dataclass(frozen=True, kw_only=True)
class TwoTowers:
    """A retriever's two directories.

    Attributes:
      releases: what each holds, by role.
      configs: the content of their config.json, by role.
      head: that makes the vectors.
      pooler: beside the directories, where there is one.
      is_one: whether the weights of the encoders are the same.
    """

    releases: Mapping[Role, Release]
    configs: Mapping[Role, dict[str, Any]]
    head: Dense
    pooler: Pooler | None
    is_one: bool

    def experiment(self, place: Path) -> Experiment:
        """A config around the retriever.

        Args:
          place: where its vocabulary will be.
        """
        one = self.releases["query"].experiment(place)
        vectors = {"pooling": self.head.pooling, "normalize": self.head.normalize}
        temperature = {} if self.head.normalize else {"temperature": DOT["temperature"]}
        objective = Contrastive(towers="one" if self.is_one else "two", **vectors, **temperature)
        data = {"task": "tasks.pairs:jsonl", "layout": Groups(), "pack": Groups.packs}
        return dataclasses.replace(
            one,
            objective=objective,
            heads=(self.head,),
            data=dataclasses.replace(one.data, **data),
        )

    def arrays(self) -> dict[str, LazyArray]:
        """The learner's parameters by path, each read when it is needed."""
        query, passage = (self.releases[role].arrays() for role in get_args(Role))
        found = {path: array for path, array in query.items() if path.startswith(_MODEL)}
        if not self.is_one:
            found |= {
                f"{TOWERS}passage/{path.removeprefix(_MODEL)}": array
                for path, array in passage.items()
                if path.startswith(_MODEL)
            }
        if self.pooler is not None:
            return found | self.pooler.lazy_arrays()
        if self.head.projection is None:
            return found
        found |= {path: array for path, array in query.items() if path.startswith(_HEAD)}
        if not self.head.tied:
            start = f"{_HEAD}query/"
            found |= {
                f"{_HEAD}passage/{path.removeprefix(start)}": array
                for path, array in passage.items()
                if path.startswith(start)
            }
        return found


def read_towers(source: Path, directories: Mapping[Role, Path]) -> TwoTowers:
    """Reads the two directories; of equal encoders all arrays, one by one.

    Args:
      source: the directory above.
      directories: of `directories_of`.

    Raises:
      InputError: one is incomplete, damaged or no encoder, or the two differ in more than weights.
    """
    configs: dict[Role, dict[str, Any]] = {
        role: read_config(path) for role, path in directories.items()
    }
    releases: dict[Role, Release] = {}
    for role, path in directories.items():
        family = encoder_families.family_of(configs[role])
        if family is None:
            kind = configs[role].get("model_type")
            raise InputError(f"{path / CONFIG}: model_type {kind!r} is no encoder's")
        releases[role] = read_release(family, path, configs[role])
        _warn_of_others(path, releases[role])
    query, passage = (releases[role] for role in get_args(Role))
    if query.checkpoint.model != passage.checkpoint.model:
        raise InputError(
            f"{source}: the two encoders are of different shapes or families: "
            f"{query.checkpoint.model} and {passage.checkpoint.model}"
        )
    if query.vocabulary.files() != passage.vocabulary.files():
        raise InputError(
            f"{source}: the two encoders have different vocabularies, and a retriever here has one"
        )
    is_one = _are_equal(query.checkpoint, passage.checkpoint)
    pooler = read_pooler(source, d_model=query.checkpoint.model.d_model)
    head = _head(source, releases, pooler, is_one=is_one)
    return TwoTowers(releases=releases, configs=configs, head=head, pooler=pooler, is_one=is_one)


def _head(
    source: Path, releases: Mapping[Role, Release], pooler: Pooler | None, *, is_one: bool
) -> Dense:
    """What makes the vectors of both."""
    query, passage = (releases[role].vectors for role in get_args(Role))
    if pooler is not None:
        if query is not None or passage is not None:
            raise InputError(
                f"{source}: {POOLER} and the encoders' directories both say how vectors are made; "
                "keep one of them"
            )
        return pooler.head
    if query is None and passage is None:
        _logger.warning(
            "%s: nothing says how vectors are made; taken to be states of [CLS], compared by "
            "products, as RetroMAE and Tevatron do: else set objective.pooling and "
            "objective.normalize",
            source,
        )
        return Dense(pooling="cls", normalize=False)
    if query is None or passage is None:
        raise InputError(f"{source}: one of the two directories has no modules.json, and one has")
    prompts = {prompt.name: prompt for prompt in (*passage.prompts, *query.prompts)}
    both = dataclasses.replace(passage, prompts=query.prompts, default_prompt=query.default_prompt)
    if both != query:
        raise InputError(
            f"{source}: the two directories make vectors in different ways: {query} and {passage}"
        )
    sources = [releases[role].projection for role in get_args(Role)]
    tied = all(one is None for one in sources) or (
        is_one and _are_equal(*(one for one in sources if one is not None))
    )
    return dataclasses.replace(query, prompts=tuple(prompts.values()), tied=tied)


def _are_equal(one: Source, other: Source) -> bool:
    """Whether two sources hold the same arrays."""
    return dict(one.shapes) == dict(other.shapes) and all(
        np.array_equal(one.array(path), other.array(path)) for path in one.shapes
    )


def _warn_of_others(directory: Path, release: Release) -> None:
    """Says what of a directory is no part of a retriever."""
    paths = [path for source in release.sources for path in source.shapes]
    left = sorted({path.split("/")[1] for path in paths if not path.startswith((_MODEL, _HEAD))})
    if left:
        _logger.warning(
            "%s: left out, as a retriever's tower has none: %s", directory, ", ".join(left)
        )
