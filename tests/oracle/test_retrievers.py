"""Exports of retrievers and cross-encoders, loaded by sentence-transformers: the same scores."""

import warnings

import numpy as np
import pytest

from t5x_lite.commands.answers import embed
from t5x_lite.commands.weights import export_adapter, export_hf, import_adapter, import_hf
from t5x_lite.inference.checkpoint import Checkpoint
from t5x_lite.interop.tensor_files import read_safetensors
from t5x_lite.layouts import Groups
from t5x_lite.objectives.contrastive import Contrastive
from tests.encoder_checkpoint import write_ranker
from tests.interop.peft_files import LORA, bert_lora
from tests.interop.peft_files import write as write_peft

pytestmark = pytest.mark.oracle
torch = pytest.importorskip("torch")
sentence_transformers = pytest.importorskip("sentence_transformers")

PAIRS = [("a b", "c"), ("a", "d e f g"), ("b c", "h"), ("a b", "a b")]
TEXTS = ["a b c", "d", "a zz b", "e f g h i j"]


def test_a_cross_encoder_has_the_same_scores(tmp_path):
    checkpoint = write_ranker(tmp_path)
    export_hf(checkpoint, tmp_path / "theirs")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of their own parts
        loaded = sentence_transformers.CrossEncoder(
            str(tmp_path / "theirs"), device="cpu", max_length=12
        )
        theirs = loaded.predict(PAIRS, activation_fn=torch.nn.Identity())
    ours = Checkpoint.load([checkpoint]).pair_scorer(batch_size=2).scores(PAIRS)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("normalize", [True, False])
def test_two_towers_with_projections_have_the_same_vectors(tmp_path, normalize):
    objective = Contrastive(
        towers="two", projection=5, tied_projection=False, normalize=normalize, pooling="cls"
    )
    checkpoint = write_ranker(tmp_path, objective=objective, layout=Groups(), targets_length=12)
    export_hf(checkpoint, tmp_path / "theirs", sentence_transformers=True)
    import_hf(tmp_path / "theirs", tmp_path / "again")
    (tmp_path / "in.txt").write_text("\n".join(TEXTS))
    found = {}
    for role in ("query", "passage"):
        output = str(tmp_path / f"{role}.npy")
        embed(str(checkpoint), input=str(tmp_path / "in.txt"), output=output, role=role)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of their own parts
            loaded = sentence_transformers.SentenceTransformer(
                str(tmp_path / "theirs" / f"{role}_model"), device="cpu"
            )
            theirs = loaded.encode(TEXTS, batch_size=2)
        found[role] = np.load(output)
        assert found[role].shape == (4, 5)
        again = str(tmp_path / f"{role}_again.npy")
        embed(str(tmp_path / "again"), input=str(tmp_path / "in.txt"), output=again, role=role)
        np.testing.assert_array_equal(np.load(again), found[role])
        np.testing.assert_allclose(found[role], theirs, rtol=1e-5, atol=1e-5)
    assert np.max(np.abs(found["query"] - found["passage"])) > 0.01


def test_an_adapter_of_peft_in_each_tower_has_the_same_vectors(tmp_path):
    peft = pytest.importorskip("peft")
    objective = Contrastive(towers="two", normalize=False, pooling="cls")
    base = write_ranker(tmp_path, objective=objective, layout=Groups(), targets_length=12)
    export_hf(base, tmp_path / "bases", sentence_transformers=True)
    ours, back = tmp_path / "ours", tmp_path / "back"
    for number, role in enumerate(("query", "passage"), 1):
        tensors = bert_lora(size=12, start="")
        write_peft(
            tmp_path / "theirs" / role,
            {**LORA, "task_type": "FEATURE_EXTRACTION"},
            {name: np.float32(0.2 * number) * array for name, array in tensors.items()},
        )
    import_adapter(tmp_path / "theirs", ours, base=base)
    export_adapter(ours, back)
    (tmp_path / "in.txt").write_text("\n".join(TEXTS))
    found = {}
    for role in ("query", "passage"):
        output = str(tmp_path / f"{role}.npy")
        embed(str(ours), input=str(tmp_path / "in.txt"), output=output, role=role)
        found[role] = np.load(output)
        for directory in (tmp_path / "theirs" / role, back / role):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of their own parts
                loaded = sentence_transformers.SentenceTransformer(
                    str(tmp_path / "bases" / f"{role}_model"), device="cpu"
                )
                plain = loaded.encode(TEXTS, batch_size=2)
                model = loaded[0].auto_model
                peft.PeftModel.from_pretrained(model, str(directory)).eval()
                theirs = loaded.encode(TEXTS, batch_size=2)
            assert np.max(np.abs(plain - theirs)) > 0.01
            np.testing.assert_allclose(found[role], theirs, rtol=1e-5, atol=1e-5)
        one, other = (
            read_safetensors(directory / "adapter_model.safetensors")
            for directory in (tmp_path / "theirs" / role, back / role)
        )
        assert len(one) == len(other)
    assert np.max(np.abs(found["query"] - found["passage"])) > 0.01
