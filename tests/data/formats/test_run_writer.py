import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.data.formats import rankings
from t5x_lite.data.formats.rankings import Ranking, ranked, read_run, run_writer, write_run

RANKINGS = [Ranking(f"q{i}", ranked([(f"d{i}", 1.5), ("x", 1 / 3)])) for i in range(5)]


def write(path, *, dies_after=9, **identity):
    with run_writer(str(path), identity=identity, chunk=2) as file:
        for number, first in enumerate(range(file.done, 5, 2)):
            if number == dies_after:
                raise KeyboardInterrupt
            file.write(RANKINGS[first : first + 2])
        return file.done


@pytest.mark.parametrize("name", ["run.trec", "run.tsv", "run.jsonl"])
@pytest.mark.parametrize("killed", [0, 1, 2])
def test_a_killed_command_goes_on(tmp_path, name, killed):
    write_run(str(tmp_path / name), RANKINGS)
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).unlink()
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / name, dies_after=killed, a=1)
    assert not (tmp_path / name).exists()
    if killed:
        with pytest.raises(InputError, match="another command"):
            write(tmp_path / name, a=2)
    assert write(tmp_path / name, a=1) == 5
    assert (tmp_path / name).read_bytes() == whole
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), InputError("disk full")], ids=repr)
def test_an_error_while_the_form_is_written_loses_nothing(tmp_path, monkeypatch, error):
    path = tmp_path / "run.trec"
    (tmp_path / "run.trec.jsonl").write_text("another file of the user")

    def fails(*args, **kwargs):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(rankings, "run_lines", fails)
        with pytest.raises(type(error)):
            write(path, a=1)
    assert not path.exists()
    assert write(path, dies_after=1, a=1) == 5  # the last chunk alone
    assert [ranking.query for ranking in read_run(str(path))] == ["q0", "q1", "q2", "q3", "q4"]
    assert (tmp_path / "run.trec.jsonl").read_text() == "another file of the user"
    assert sorted(one.name for one in tmp_path.iterdir()) == ["run.trec", "run.trec.jsonl"]


def test_standard_output(capfdbinary):
    assert write("-") == 5
    assert capfdbinary.readouterr().out.startswith(b"q0 Q0 d0 1 1.5 t5x_lite\nq0 Q0 x 2 0.333")


def test_ids_that_the_form_cannot_hold(tmp_path):
    """The rankings stay as JSON lines, next to a file of the user; the error says where."""
    path = str(tmp_path / "run.trec")
    for kept in (f"{path}.jsonl", f"{path}.1.jsonl", f"{path}.2.jsonl"):
        with (
            pytest.raises(InputError, match=f"'a b' .* white space.*; the rankings are in {kept},"),
            run_writer(path, identity={}, chunk=1) as file,
        ):
            file.write([Ranking("a b", [])])
        assert next(iter(read_run(kept))).query == "a b"
    names = ["run.trec.1.jsonl", "run.trec.2.jsonl", "run.trec.jsonl"]
    assert sorted(one.name for one in tmp_path.iterdir()) == names
