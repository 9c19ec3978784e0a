import logging
import os

import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.data.formats.documents import Source, tempered_files, weighted_files, weighted_lines


@pytest.fixture
def files(tmp_path, monkeypatch):
    """3000 English lines of 10 bytes in two files, 100 German ones of 20 bytes."""
    monkeypatch.chdir(tmp_path)
    for name, begin in (("a", 0), ("b", 1500)):
        lines = [f"  line {number:05} \n\n" for number in range(begin, begin + 1500)]
        (tmp_path / f"en_{name}.txt").write_text("".join(lines))
    (tmp_path / "de.txt").write_text("".join(f"Zeile Nr. ä {n:07}\n" for n in range(100)))
    return tmp_path


def sizes(lines):
    texts = [line.strip() for line in lines]
    return {
        word: sum(len(text.encode()) for text in texts if text.startswith(word))
        for word in ("line", "Zeile")
    }


def test_without_weights_there_are_no_sources():
    assert weighted_files(["a.txt", "-"]) is None
    assert weighted_files([]) is None


def test_sources(files):
    assert weighted_files(["en_*.txt=10", "de.txt=.5"]) == [
        Source(name="en_*.txt", files=("en_a.txt", "en_b.txt"), weight=10.0),
        Source(name="de.txt", files=("de.txt",), weight=0.5),
    ]


def test_a_name_that_ends_in_a_number_is_a_file_that_is_there(files):
    (files / "de=1").write_text("Text\n")
    assert weighted_files(["de=1"]) is None
    assert weighted_files(["de=1=3"]) == [Source(name="de=1", files=("de=1",), weight=3.0)]


def test_the_scarcest_source_is_whole_and_the_others_have_their_share(files, caplog):
    with caplog.at_level(logging.INFO):
        sources = weighted_files(["en_*.txt=10", "de.txt=2"])
        assert sources is not None
        lines = list(weighted_lines(sources, seed=0))
    found = sizes(lines)
    assert found["Zeile"] == 100 * 20
    assert found["line"] == pytest.approx(10_000, rel=0.1)
    assert (
        "input en_*.txt has weight 10 of a total of 12: sampling 33.33 % of its 30,000 bytes"
        in caplog.text
    )
    assert (
        "input de.txt has weight 2 of a total of 12: sampling 100 % of its 2,000 bytes"
        in caplog.text
    )
    other = weighted_files(["en_*.txt=3000", "de.txt=4"])
    assert other is not None
    assert sizes(weighted_lines(other, seed=0))["line"] == 30_000
    assert sizes(weighted_lines(other, seed=0))["Zeile"] < 200


def test_equal_seeds_draw_equal_lines_and_others_others(files):
    sources = weighted_files(["en_*.txt=1", "de.txt=1"])
    assert sources is not None
    drawn = [list(weighted_lines(sources, seed=seed)) for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    # These lines are those of every machine and version.
    assert [line.split()[1] for line in drawn[0][:3]] == FIRST


FIRST = ["00009", "00034", "00044"]


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (
            ["en_a.txt=10", "de.txt"],
            "de.txt has no weight, but another --input has one; write FILE=WEIGHT, such as",
        ),
        (["en_a.txt=0", "de.txt=1"], "--input en_a.txt=0: the weight must be a number above 0"),
        (["en_a.txt=-1", "de.txt=1"], "--input en_a.txt=-1: the weight must be"),
        (["en_a.txt=nan"], "--input en_a.txt=nan: the weight must be"),
        (["fr.txt=1", "de.txt=1"], "--input fr.txt: there is no such file"),
        (["fr_*.txt=1", "de.txt=1"], "--input fr_*.txt: no file matches"),
        (
            ["en_*.txt=1", "en_a.txt=2"],
            "--input names the file en_a.txt twice; name it once, with the sum of both weights",
        ),
        ([".=1"], "--input . is a directory; name the files in it, such as ./*.txt"),
        (
            ["-=1"],
            "--input - is standard input, which can be read only once",
        ),
        (["pipe=1"], "--input pipe is not a regular file"),
    ],
)
def test_what_is_wrong_is_one_line(files, inputs, message):
    os.mkfifo("pipe")
    with pytest.raises(InputError) as error:
        weighted_files(inputs)
    assert str(error.value).startswith(message) or message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_source_without_text_is_refused(files):
    (files / "fr.txt").write_text("\n  \n")
    sources = weighted_files(["fr.txt=1", "de.txt=1"])
    assert sources is not None
    with pytest.raises(InputError, match=r"fr\.txt has no text; remove the file, or add text"):
        weighted_lines(sources, seed=0)


def test_shares_are_powers_of_the_bytes(tmp_path):
    names = {"a": 30_000, "b": 1_000}
    for name, count in names.items():
        (tmp_path / f"{name}.txt").write_text(f"{name * 9}\n" * count)
    sources = tempered_files([str(tmp_path / f"{name}.txt") for name in names], 0.3)
    drawn = [line.strip()[0] for line in weighted_lines(sources, seed=0)]
    wanted = 30**0.3 / (30**0.3 + 1)
    assert drawn.count("a") / len(drawn) == pytest.approx(wanted, abs=0.01)
    assert drawn.count("b") == 1_000
