"""Two encoders, or two projections, as two directories."""

import dataclasses

import numpy as np
import pytest

from t5x_lite import layouts
from t5x_lite.config import Experiment
from t5x_lite.core.trees import LazyArray
from t5x_lite.data.config import Data
from t5x_lite.interop.hf_export import of_role, projection_of, roles_of
from t5x_lite.models.vector_heads import Dense
from t5x_lite.objectives.contrastive import Contrastive, dpr
from t5x_lite.optim.config import AdamW, Constant
from tests.objectives.encoder_rows import MODEL


def experiment(objective):
    return Experiment(
        model=MODEL,
        objective=objective,
        data=Data(task="x:y", vocabulary="v", layout=layouts.Groups(), pack=False),
        optimizer=AdamW(schedule=Constant(value=0.01)),
        steps=1,
    )


def test_which_checkpoints_have_two():
    both = ("query", "passage")
    assert roles_of(experiment(Contrastive()), projections=True) == ()
    assert roles_of(experiment(dpr()), projections=False) == both
    apart = Contrastive(projection=4, tied_projection=False)
    assert roles_of(experiment(apart), projections=True) == both
    assert roles_of(experiment(apart), projections=False) == ()
    assert roles_of(experiment(Contrastive(projection=4)), projections=True) == ()


@pytest.mark.parametrize("role", ["query", "passage"])
def test_the_encoder_of_a_role_becomes_the_model(role):
    params = dict.fromkeys(["model/a", "towers/passage/a", "heads/dense/query/kernel"])
    params = {path: LazyArray((1,), np.dtype("f4"), lambda p=path: p) for path in params}
    one, found = of_role(experiment(dpr()), params, role)
    assert one.objective == dataclasses.replace(dpr(), towers="one")
    assert {path: array.read() for path, array in found.items()} == {
        "model/a": "model/a" if role == "query" else "towers/passage/a",
        "heads/dense/query/kernel": "heads/dense/query/kernel",
    }


def test_the_projection_of_a_role():
    params = {
        f"heads/dense/{role}/{leaf}": LazyArray((1,), np.dtype("f4"), lambda: np.zeros(1))
        for role in ("query", "passage")
        for leaf in ("kernel", "bias")
    }

    def named(head, role):
        layer = projection_of(head, params, role)
        return (
            None if layer is None else [k for one in layer for k, x in params.items() if x is one]
        )

    assert named(Dense(), "query") is None
    shared = ["heads/dense/query/kernel", "heads/dense/query/bias"]
    assert named(Dense(projection=3), "passage") == shared
    own = ["heads/dense/passage/kernel", "heads/dense/passage/bias"]
    assert named(Dense(projection=3, tied=False), "passage") == own
