"""vocab: the pieces of a vocabulary, and the texts, weights and characters that it is made of."""

import gzip
import json
import re

import pytest

from t5x_lite.commands.texts import vocab
from t5x_lite.core.errors import InputError
from t5x_lite.core.options import OptionError
from t5x_lite.data.vocabularies.loading import load_vocabulary


def test_vocab(tmp_path, english_lines, capsys):
    texts = [tmp_path / "a.txt", tmp_path / "b.txt"]
    texts[0].write_text("\n".join(english_lines[:200]))
    texts[1].write_text("\n".join(english_lines[200:400]))
    vocab([str(text) for text in texts], output=str(tmp_path / "vocabulary"), size=300)
    model = tmp_path / "vocabulary" / "sentencepiece.model"
    assert capsys.readouterr().out == f"{model}\n"
    assert load_vocabulary(tmp_path / "vocabulary").size == 300 + 100


def test_vocab_of_weighted_files(tmp_path, english_lines, capsys):
    many, few = tmp_path / "many.txt", tmp_path / "few.txt"
    many.write_text("\n".join(english_lines[:400]))
    few.write_text("\n".join(f"Quax quillt {line[:20]}" for line in english_lines[400:420]))
    models = {}
    for name, weights, seed in (("a", (5, 1), 0), ("b", (10, 2), 0), ("c", (5, 1), 1)):
        inputs = [f"{file}={weight}" for file, weight in zip((many, few), weights, strict=True)]
        vocab(inputs, output=str(tmp_path / name), size=200, seed=seed)
        models[name] = (tmp_path / name / "sentencepiece.model").read_bytes()
    assert models["a"] == models["b"] != models["c"]
    capsys.readouterr()
    with pytest.raises(
        InputError, match=r"too little text for 2000 pieces; .* shortest for its weight"
    ):
        vocab([f"{many}=1", f"{few}=1"], output=str(tmp_path / "d"), size=2000)
    assert not (tmp_path / "d").exists()


def test_a_vocabulary_of_an_encoder_from_a_tempered_sample(tmp_path, english_lines, capsys, caplog):
    caplog.set_level("INFO", logger="t5x_lite.commands.texts")
    many, few = tmp_path / "many.txt", tmp_path / "few.txt"
    many.write_text("\n".join(english_lines[:400]))
    few.write_text("\n".join(f"Quax quillt {line[:20]}" for line in english_lines[400:420]))
    made = vocab(
        [str(many), str(few)], output=str(tmp_path / "v"), size=200, alpha=0.3, encoder=True
    )
    assert made.name == "spm.model"
    assert re.search(
        r"few.txt: \d\.\d\d pieces per word, \d\.\d characters per piece, ", caplog.text
    )
    assert caplog.text.count("pieces per word") == 2
    vocabulary = load_vocabulary(made)
    ids = (vocabulary.pad_id, vocabulary.cls_id, vocabulary.sep_id, vocabulary.unk_id)
    assert ids == (0, 1, 2, 3)
    assert vocabulary.mask_id == 200
    assert vocabulary.decode(vocabulary.encode("the quillt")) == "the quillt"
    capsys.readouterr()
    with pytest.raises(
        InputError, match="--alpha computes the weights of the files, but --input also has weights"
    ):
        vocab([f"{many}=1"], output=str(tmp_path / "d"), size=200, alpha=0.3)
    with pytest.raises(OptionError, match=r"--alpha must be in \(0, 1\], got 0"):
        vocab([str(many)], output=str(tmp_path / "d"), size=200, alpha=0.0)


CURLY = ["“It is a far, far better thing,” said he — and then: ‘no’ é"] * 4


@pytest.fixture
def curly_file(tmp_path, english_lines):
    path = tmp_path / "curly.txt"
    path.write_text("\n".join([*english_lines, *CURLY, "ünique", "œ" * 3]))
    return path


def pieces(directory):
    vocabulary = load_vocabulary(str(directory / "sentencepiece.model"))
    return {c for c in "“”—‘’éüœ" if vocabulary.unk_id not in vocabulary.encode(c)}


def test_a_vocabulary_covers_frequent_characters(tmp_path, curly_file):
    vocab([str(curly_file)], output=str(tmp_path / "v"), size=300)
    assert pieces(tmp_path / "v") >= set("“”—‘’éœ")


def test_t5s_coverage_leaves_rare_characters_out(tmp_path, curly_file):
    vocab([str(curly_file)], output=str(tmp_path / "v"), size=300, character_coverage=0.98)
    assert "œ" not in pieces(tmp_path / "v")


def test_ascii_has_pieces_unless_they_are_left_out(tmp_path, english_lines):
    text = tmp_path / "text.txt"
    text.write_text("\n".join(english_lines[:400]).replace("7", ""))
    for no_ascii in (False, True):
        output = str(tmp_path / f"without_{no_ascii}")
        made = vocab([str(text)], output=output, size=300, no_ascii=no_ascii)
        vocabulary = load_vocabulary(made)
        assert (vocabulary.unk_id in vocabulary.encode("7")) == no_ascii


def test_a_pipe_is_read_once(tmp_path, curly_file, monkeypatch):
    with curly_file.open() as file:
        monkeypatch.setattr("sys.stdin", file)
        vocab(["-"], output=str(tmp_path / "v"), size=300)
    assert pieces(tmp_path / "v") >= set("“”—‘’éœ")


def test_characters_beyond_half_of_the_pieces_are_named(tmp_path, caplog):
    text = tmp_path / "han.txt"
    text.write_text("\n".join("".join(chr(0x4E00 + i) for i in range(200)) for _ in range(9)))
    with pytest.raises(InputError):
        vocab([str(text)], output=str(tmp_path / "v"), size=150)
    assert "no piece for 125 frequent characters, such as" in caplog.text
    assert "raise --size to at least 400, or set --character-coverage" in caplog.text


@pytest.mark.parametrize("coverage", [0.9, 1.1, float("nan")])
def test_a_coverage_is_a_fraction(tmp_path, curly_file, coverage):
    with pytest.raises(OptionError, match=r"--character-coverage must be in \[0\.98, 1\], got"):
        vocab([str(curly_file)], output=str(tmp_path), size=99, character_coverage=coverage)


def test_vocab_reads_the_text_of_json_and_of_tables(tmp_path, english_lines, capsys):
    """What `t5x-lite c4` writes: neither keys nor addresses are text (W1 of the review)."""
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    lines = english_lines[:300]
    (tmp_path / "a.txt").write_text("\n".join(lines))
    c4 = tmp_path / "c4"
    c4.mkdir()
    pages = ["\n".join(lines[start : start + 10]) for start in range(0, 300, 10)]
    records = [{"text": one, "url": "https://a.org/zqx", "timestamp": "2019"} for one in pages]
    content = "\n".join(map(json.dumps, records)).encode()
    (c4 / "c4-train.00000-of-00001.json.gz").write_bytes(gzip.compress(content))
    (c4 / "manifest.json").write_text('{"zqx": "zqx"}')
    pq.write_table(pa.table({"url": ["zqx"] * 30, "body": pages}), tmp_path / "a.parquet")
    models = []
    for inputs, options in (
        ([str(tmp_path / "a.txt")], {}),
        ([str(c4)], {}),
        ([str(c4 / "*.json.gz")], {}),
        ([str(tmp_path / "a.parquet")], {"text": "body"}),
    ):
        made = vocab(inputs, output=str(tmp_path / f"v{len(models)}"), size=300, **options)
        models.append(made.read_bytes())
    assert models == models[:1] * 4
    with pytest.raises(InputError, match=r"no column 'text', but only url, body"):
        vocab([str(tmp_path / "a.parquet")], output=str(tmp_path / "v"), size=300)
    assert not (tmp_path / "v").exists()
    with pytest.raises(InputError, match=r"no_such.parquet: No such file"):
        vocab([str(tmp_path / "no_such.parquet")], output=str(tmp_path / "v"), size=300)


def test_weights_count_bytes_of_text(tmp_path, english_lines, caplog):
    """A file whose lines are mostly address does not count as more text."""
    caplog.set_level("INFO", logger="t5x_lite")
    (tmp_path / "a.txt").write_text("\n".join(english_lines[:200]))
    records = [{"text": line, "url": "x" * 500} for line in english_lines[:200]]
    (tmp_path / "b.jsonl").write_text("\n".join(map(json.dumps, records)))
    inputs = [f"{tmp_path / 'a.txt'}=1", f"{tmp_path / 'b.jsonl'}=1"]
    vocab(inputs, output=str(tmp_path / "v"), size=200)
    said = [re.search(r"weight 1 of a total of 2: sampling (.*)", line) for line in caplog.messages]
    shares = [found[1] for found in said if found]
    assert len({*shares}) == 1
    assert shares[0].startswith("100 % of")
