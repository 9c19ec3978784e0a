"""What `export hf --sentence-transformers` writes, loaded by sentence-transformers."""

import warnings

import numpy as np
import pytest

from scripts import encoder_goldens as goldens
from t5x_lite.run.interchange import export_hf, import_hf
from t5x_lite.run.text_encoder import TextEncoder

pytestmark = pytest.mark.oracle
pytest.importorskip("torch")
sentence_transformers = pytest.importorskip("sentence_transformers")

SPECIAL = {0: "[PAD] [UNK] [CLS] [SEP] [MASK]", 1: "[CLS] [PAD] [SEP] [UNK] [MASK]"}
TEXTS = ["a b c", "", "o", "a zz b", "a b c d e f g h i j k l m n o a b c d e"]


@pytest.mark.parametrize(
    ("variant", "pooling", "normalize"),
    [("bert", "mean", True), ("bert", "cls", False), ("roberta", "mean", None)],
)
def test_the_same_vectors(tmp_path, variant, pooling, normalize):
    config = goldens.VARIANTS[variant]
    goldens.random_model(config, seed=3).save_pretrained(tmp_path / "source")
    pieces = [*SPECIAL[config["pad_token_id"]].split(), *"abcdefghijklmno"]
    (tmp_path / "source" / "vocab.txt").write_text("\n".join(pieces) + "\n")
    (tmp_path / "source" / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "BertTokenizer"}'
    )
    import_hf(tmp_path / "source", tmp_path / "ours")
    how = {"pooling": pooling, "normalize": normalize}
    export_hf(tmp_path / "ours", tmp_path / "theirs", sentence_transformers=True, **how)
    encoder = TextEncoder.load(str(tmp_path / "ours"), **how)
    ours = encoder.embedder(batch_size=2).run(encoder.params, encoder.rows(TEXTS).rows)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of their own parts
        loaded = sentence_transformers.SentenceTransformer(str(tmp_path / "theirs"), device="cpu")
    assert loaded.max_seq_length == encoder.length
    theirs = loaded.encode(TEXTS, batch_size=2)
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
    norms = np.linalg.norm(theirs, axis=1)
    assert np.allclose(norms, 1, atol=1e-5) == (normalize is not False)
