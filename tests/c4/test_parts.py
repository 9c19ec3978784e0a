import pytest

from t5x_lite.c4 import output
from t5x_lite.c4.output import Part, PartWriter
from t5x_lite.core.errors import InputError


def write(path, records, **options):
    with PartWriter(path, **options) as part:
        for group, record in records:
            part.add(group, record)
        part.extra = {"count": len(records), "text": "\ud800"}
    return Part(path)


def test_records_by_group(tmp_path):
    records = [(n % 3, (bytes([n]), f"text {n} \ud800", n)) for n in range(100)]
    for flush_bytes in (1, 100, 1 << 20):
        part = write(tmp_path / "a.part", records, flush_bytes=flush_bytes)
        assert sorted(part.groups) == [0, 1, 2]
        for group in range(3):
            assert [tuple(r) for r in part.records(group)] == [
                record for of, record in records if of == group
            ]
        assert list(part.records(7)) == []
        assert part.extra == {"count": 100, "text": "\ud800"}


def test_large_groups_are_written_in_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(output, "_BLOCK_BYTES", 1000)
    part = write(tmp_path / "a.part", [("train/0", ("x" * 300,))] * 50)
    assert len(part._blocks["train/0"]) > 5
    assert len(list(part.records("train/0"))) == 50


def test_nothing_is_left_of_a_part_that_fails(tmp_path):
    with pytest.raises(TypeError), PartWriter(tmp_path / "a.part") as part:
        part.add(0, ("x", object()))
    with pytest.raises(TypeError), PartWriter(tmp_path / "a.part") as part:
        part.extra = object()
    assert list(tmp_path.iterdir()) == []


def test_damaged_parts(tmp_path):
    path = tmp_path / "a.part"
    write(path, [(0, ("x",))])
    whole = path.read_bytes()
    for content in (b"", whole[:-1], b"x" * 40, whole[:-17] + b"x" + whole[-16:]):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"a\.part is damaged"):
            Part(path)
