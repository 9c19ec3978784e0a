"""predict: the options of a search."""

import dataclasses

from t5x_lite.commands.answers import predict
from t5x_lite.decoding.sampling import Decoding


def test_predict_offers_every_choice_of_decoding_with_its_default():
    own = {field.name: field.default for field in dataclasses.fields(predict.options)}
    for field in dataclasses.fields(Decoding):
        if field.name != "eos_id":
            assert own[field.name] == field.default, field.name
