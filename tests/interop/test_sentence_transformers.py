import json

import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.interop.retrievers import read_sentences, sentence_files
from t5x_lite.models.vector_heads import Dense


@pytest.mark.parametrize("normalize", [True, False])
def test_the_files_of_a_directory(normalize):
    encoder = Dense(pooling="cls", normalize=normalize)
    files = {
        n: json.loads(c) for n, c in sentence_files(encoder, d_model=16, max_length=128).items()
    }
    modules = files["modules.json"]
    paths = ["", "1_Pooling", "2_Normalize"][: 2 + normalize]
    assert [(module["idx"], module["path"]) for module in modules] == list(enumerate(paths))
    assert modules[1]["type"] == "sentence_transformers.models.Pooling"
    assert ("2_Normalize/config.json" in files) == normalize
    assert files["sentence_bert_config.json"]["max_seq_length"] == 128
    pooling = files["1_Pooling/config.json"]
    assert pooling.pop("word_embedding_dimension") == 16
    assert [name for name, value in pooling.items() if value] == ["pooling_mode_cls_token"]
    assert files["config_sentence_transformers.json"]["similarity_fn_name"] == (
        "cosine" if normalize else "dot"
    )


def test_the_mean():
    encoder = Dense(pooling="mean")
    pooling = json.loads(sentence_files(encoder, d_model=4, max_length=8)["1_Pooling/config.json"])
    assert pooling["pooling_mode_mean_tokens"]
    assert not pooling["pooling_mode_cls_token"]


@pytest.mark.parametrize("path", ["/etc", "../other", "1_Pooling/../../other"])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_module_outside_the_directory_is_refused(number, path, tmp_path):
    files = sentence_files(Dense(pooling="cls", normalize=True), d_model=4, max_length=8)
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    modules = json.loads(files["modules.json"])
    modules[number]["path"] = path
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(InputError, match="must be inside the directory"):
        read_sentences(tmp_path, d_model=4, lowers=True)
