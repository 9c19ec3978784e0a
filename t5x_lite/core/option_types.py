"""Types of command-line options, with their bounds and the placeholder that the help shows.

    depth: Annotated[int, tyro.conf.arg(metavar="N"), AtLeast(1)] = 1000       # Positive
    encoder: Annotated[QueryEncoder, SHARED] = QueryEncoder()

Commands annotate their parameters with these types. Several commands can share the options of one
dataclass (`SHARED`).
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import tyro

from t5x_lite.core.options import AtLeast

SHARED = object()
"""Annotation of a dataclass parameter; each field of the dataclass becomes an option."""


OVERRIDES = object()
"""Annotation of the parameter that receives the options for the fields of a config."""


Overrides = Annotated[Sequence[str], OVERRIDES]


Config = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="CONFIG")]


Workdirs = Annotated[
    Sequence[str], tyro.conf.Positional, tyro.conf.arg(metavar="WORKDIR [WORKDIR ...]")
]


Source = Annotated[str | Path, tyro.conf.Positional, tyro.conf.arg(metavar="SRC")]


Destination = Annotated[str | Path, tyro.conf.Positional, tyro.conf.arg(metavar="DST")]


AnyDirectory = Annotated[str | Path, tyro.conf.arg(metavar="DIR")]


AnyFile = Annotated[str | Path, tyro.conf.arg(metavar="FILE")]


SomeDirectory = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]


Repository = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ORG/NAME")]


Directory = Annotated[str, tyro.conf.arg(metavar="DIR")]


Directories = Annotated[Sequence[str], tyro.conf.arg(metavar="DIR [DIR ...]")]


OptionalDirectory = Annotated[str | None, tyro.conf.arg(metavar="DIR")]


File = Annotated[str, tyro.conf.arg(metavar="FILE")]


Files = Annotated[Sequence[str], tyro.conf.arg(metavar="FILE [FILE ...]")]


OptionalFile = Annotated[str | None, tyro.conf.arg(metavar="FILE")]


Count = Annotated[int, tyro.conf.arg(metavar="N")]


Number = Annotated[float, tyro.conf.arg(metavar="X")]


OptionalNumber = Annotated[float | None, tyro.conf.arg(metavar="X")]


Grid = Annotated[
    Sequence[str], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="NAME=VALUE[,VALUE...]")
]
"""An option that may be given several times, with one field of a config each."""


Text = Annotated[str, tyro.conf.arg(metavar="TEXT")]


Two = Annotated[tuple[float, float], tyro.conf.arg(metavar="X X")]


Three = Annotated[tuple[float, float, float], tyro.conf.arg(metavar="X X X")]


Texts = Annotated[Sequence[str], tyro.conf.arg(metavar="TEXT [TEXT ...]")]


OptionalText = Annotated[str | None, tyro.conf.arg(metavar="TEXT")]


LongInputs = Literal["cut", "refuse"]


Dtype = Literal["keep", "float32", "bfloat16"]


Platforms = Annotated[
    Sequence[Literal["cpu", "cuda", "rocm", "tpu"]],
    tyro.conf.arg(metavar="PLATFORM [PLATFORM ...]"),
]


OptionalPooling = Literal["cls", "mean"] | None


OptionalFeedForward = (
    Literal["relu", "gelu", "silu", "gated-relu", "gated-gelu", "gated-silu"] | None
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Modules:
    """Options that select adapters of a checkpoint.

    Attributes:
      use: names of adapters, separated by commas, or a composition such as Stack(a, b); "" uses
        only the base model. Default: the adapters used in training; for evaluate, the config field
        adapters.use.
    """

    use: Annotated[OptionalText, tyro.conf.arg(help_behavior_hint="")] = None
    load: ClassVar[Sequence[str]] = ()  # so that callers from Python may pass it as `RowModules`


ALL_MODULES = Modules()
"""Selection of all adapters that a checkpoint has."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowModules(Modules):
    """Adapters of a checkpoint, and adapters that single texts may select by name.

    Attributes:
      use: names of adapters, separated by commas, or a composition such as Stack(a, b); "" uses
        only the base model. A text that names an adapter uses only this adapter. Default: the
        adapters used in training.
      load: further adapters of the same base model, as NAME=DIR, for texts with the field
        "adapter": "NAME". DIR is a work directory with the adapter NAME or with a single adapter.
    """

    load: Annotated[
        Sequence[str], tyro.conf.arg(metavar="NAME=DIR [NAME=DIR ...]", help_behavior_hint="")
    ] = ()


NO_ROW_MODULES = RowModules()
"""All that the checkpoint has, and no others."""


Positive = Annotated[int, tyro.conf.arg(metavar="N"), AtLeast(1)]


OptionalPositive = Annotated[int | None, tyro.conf.arg(metavar="N"), AtLeast(1)]


Natural = Annotated[int, tyro.conf.arg(metavar="N"), AtLeast(0)]


OptionalNatural = Annotated[int | None, tyro.conf.arg(metavar="N"), AtLeast(0)]


Step = Annotated[int | Literal["best"] | None, tyro.conf.arg(metavar="N|best"), AtLeast(0)]


Numbers = Annotated[Sequence[float], tyro.conf.arg(metavar="X [X ...]")]


Positives = Annotated[Sequence[int], tyro.conf.arg(metavar="N [N ...]"), AtLeast(1)]
