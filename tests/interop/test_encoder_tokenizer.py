import json
import logging

import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.data.vocabularies.byte_level import read_spm
from t5x_lite.data.vocabularies.tokenizer import Tokenizer
from t5x_lite.interop.tokenizers import kept_files, read_encoder_tokenizer, tokenizer_files
from tests.tokenizer_files import write_byte_level, write_spm, write_wordpiece


def test_a_tokenizer_json_comes_before_a_vocab_txt(tmp_path):
    write_wordpiece(tmp_path)
    found = read_encoder_tokenizer(tmp_path, vocab_size=200, pad_id=0)
    assert found.model_path.name == "vocab.txt"
    write_byte_level(tmp_path)
    found = read_encoder_tokenizer(tmp_path, vocab_size=400, pad_id=1)
    assert found.model_path.name == "tokenizer.json"


@pytest.mark.parametrize(
    ("vocab_size", "pad_id", "message"),
    [
        (20, 0, "tokens, but the model's embedding has 20 rows"),
        (200, 1, "padding id is 0, but the model's pad_token_id is 1"),
    ],
)
def test_a_tokenizer_of_another_model(tmp_path, vocab_size, pad_id, message):
    write_wordpiece(tmp_path)
    with pytest.raises(InputError, match=message):
        read_encoder_tokenizer(tmp_path, vocab_size=vocab_size, pad_id=pad_id)


def test_no_tokenizer(tmp_path):
    with pytest.raises(InputError, match=r"none of the supported tokenizer files .*AutoTokenizer"):
        read_encoder_tokenizer(tmp_path, vocab_size=9, pad_id=0)


@pytest.mark.parametrize("compose", [True, False])
def test_a_tokenizer_json_that_cuts_decomposed_text_is_told(
    tmp_path, english_lines, compose, caplog
):
    read_spm(write_spm(tmp_path, english_lines), compose=compose).save(tmp_path / "saved")
    with caplog.at_level(logging.INFO):
        found = read_encoder_tokenizer(tmp_path / "saved", vocab_size=400, pad_id=0)
    assert found.encode("caf\u00e9") == found.encode("cafe\u0301") or not compose
    assert ["splits decomposed text" in message for message in caplog.messages] == [True] * (
        not compose
    )


def test_files_of_a_release_are_kept_as_they_are(tmp_path):
    write_wordpiece(tmp_path)
    stated = {"do_lower_case": True, "tokenizer_class": "BertTokenizer", "model_max_length": 7}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(stated))
    (tmp_path / "special_tokens_map.json").write_text("{}")
    (tmp_path / "README.md").write_text("about")
    vocabulary = read_encoder_tokenizer(tmp_path, vocab_size=200, pad_id=0)
    kept = kept_files(tmp_path, vocabulary)
    assert set(kept) == {"tokenizer_config.json", "special_tokens_map.json"}
    written = tokenizer_files(vocabulary, {**kept, "config.json": b"{}"}, max_length=99)
    assert set(written) == {*kept, "vocab.txt"}
    assert json.loads(written["tokenizer_config.json"]) == stated
    assert written["vocab.txt"] == (tmp_path / "vocab.txt").read_bytes()


def test_an_spm_model_comes_in_and_goes_out(tmp_path, english_lines):
    """As deberta-v3's releases have it: no tokenizer.json, and rows behind [MASK]."""
    content = write_spm(tmp_path, english_lines).read_bytes()
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    vocabulary = read_encoder_tokenizer(tmp_path, vocab_size=400, pad_id=0)
    kept = kept_files(tmp_path, vocabulary)
    assert kept["spm.model"] == content
    written = tokenizer_files(vocabulary, kept, max_length=99)
    assert set(written) == {"spm.model", "tokenizer.json", "tokenizer_config.json"}
    (tmp_path / "again").mkdir()
    for name, file in written.items():
        (tmp_path / "again" / name).write_bytes(file)
    again = read_encoder_tokenizer(tmp_path / "again", vocab_size=400, pad_id=0)
    assert again.encode("two dogs[MASK]") == vocabulary.encode("two dogs[MASK]")


def test_a_wordpiece_of_ones_own(tmp_path):
    vocabulary = Tokenizer(write_wordpiece(tmp_path))
    written = tokenizer_files(vocabulary, {"config.json": b"{}"}, max_length=99)
    assert set(written) == {"vocab.txt", "tokenizer_config.json"}
    config = json.loads(written["tokenizer_config.json"])
    assert config["tokenizer_class"] == "BertTokenizer"
    assert config["model_max_length"] == 99
    assert config["mask_token"] == "[MASK]"
    assert config["do_lower_case"] is True


def test_a_tokenizer_json_of_ones_own_adds_the_special_pieces(tmp_path):
    import tokenizers

    vocabulary = Tokenizer(write_byte_level(tmp_path))
    written = tokenizer_files(vocabulary, {}, max_length=99)
    config = json.loads(written["tokenizer_config.json"])
    assert config["tokenizer_class"] == "PreTrainedTokenizerFast"
    made = tokenizers.Tokenizer.from_str(written["tokenizer.json"].decode())
    plain = vocabulary.encode("dog run")
    assert made.encode("dog run").ids == [0, *plain, 2]
    assert made.encode("dog", "run").type_ids[-1] == 1
    (tmp_path / "tokenizer.json").write_bytes(written["tokenizer.json"])
    again = tokenizer_files(Tokenizer(tmp_path / "tokenizer.json"), {}, max_length=99)
    assert json.loads(again["tokenizer.json"]) == json.loads(written["tokenizer.json"])
