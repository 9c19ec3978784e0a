import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.interop.deberta import DEBERTA
from t5x_lite.interop.encoder_checkpoints import MODEL_TYPES, family_of, with_family
from t5x_lite.interop.encoders import BERT
from t5x_lite.models.encoder import BertConfig, EncoderConfig, is_encoder
from t5x_lite.models.published import t5_small

SIZES = {"vocab_size": 9, "d_model": 4, "d_ff": 6, "num_heads": 2, "num_layers": 1}


def test_families():
    for kind in ("bert", "roberta", "xlm-roberta", "electra"):
        assert family_of({"model_type": kind}) is BERT
        assert kind in MODEL_TYPES
    assert family_of({"model_type": "deberta-v2"}) is DEBERTA
    assert family_of({"model_type": "t5"}) is family_of({}) is None


def test_models():
    bert = BertConfig(**SIZES)
    assert with_family(bert, where="here") == (bert, BERT)
    assert is_encoder(bert)
    assert not is_encoder(t5_small())
    with pytest.raises(
        InputError, match="checkpoint here is of class EncoderConfig, which transformers"
    ):
        with_family(EncoderConfig(**SIZES), where="here")
