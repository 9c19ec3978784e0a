"""Added tokens as tokenizer files state them; tests/interop/test_tokenizers.py has texts."""

import json

import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.core.object_store import data_path
from t5x_lite.data.vocabularies.added_tokens import AddedToken, Stated, as_added


def stated(directory, **files):
    for name, content in files.items():
        (directory / f"{name}.json").write_text(json.dumps(content))
    return Stated.of(data_path(str(directory)))


def test_an_entry_may_be_a_text_or_an_object():
    assert as_added("<sep>", where="f").content == "<sep>"
    entry = {"content": "<sep>", "lstrip": True, "rstrip": False, "single_word": True}
    added = as_added(entry, where="f", number=7)
    assert (added.content, added.id, added.lstrip, added.single_word) == ("<sep>", 7, True, True)
    assert not AddedToken(content="a", normalized=False).flags()["normalized"]


@pytest.mark.parametrize("entry", [7, {"content": 7}, {"content": ""}, {"lstrip": True}])
def test_a_wrong_entry_is_refused(entry):
    with pytest.raises(InputError):
        as_added(entry, where="f")


def test_a_role_is_read(tmp_path):
    assert stated(tmp_path, special_tokens_map={"bos_token": "<s>"}).role("bos") == "<s>"


def test_a_file_that_is_no_object_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"added_tokens\.json"):
        stated(tmp_path, added_tokens=["<sep>"])
