"""TensorBoard's events: what is in the file, and a full disk, which is an error and no wait."""

import os

import pytest

from t5x_lite.train.track import Events

pytest.importorskip("tensorboardX")


def events(path):
    from tensorboardX.proto.event_pb2 import Event

    data, found = path.read_bytes(), []
    while data:  # TFRecord: uint64 length, crc, payload, crc
        length = int.from_bytes(data[:8], "little")
        found.append(Event.FromString(data[12 : 12 + length]))
        data = data[16 + length :]
    return found


def test_a_file_of_scalars(tmp_path):
    writer = Events(tmp_path / "new", first_step=3)
    writer.add(3, {"loss": 2.5, "validation/loss": 1.5})
    (path,) = (tmp_path / "new").iterdir()
    assert path.stat().st_size > 0  # the first are flushed at once
    writer.add(4, {"loss": 2.0})
    writer.close()
    version, first, start, *scalars = events(path)
    assert version.file_version == first.file_version == "brain.Event:2"
    assert (first.step, start.step, start.session_log.status) == (3, 3, start.session_log.START)
    assert [
        (event.step, value.tag, value.simple_value)
        for event in scalars
        for value in event.summary.value
    ] == [(3, "loss", 2.5), (3, "validation/loss", 1.5), (4, "loss", 2.0)]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="/dev/full: Linux")
def test_a_full_disk_is_an_error(tmp_path):
    writer = Events(tmp_path, first_step=1)
    (path,) = tmp_path.iterdir()
    full = os.open("/dev/full", os.O_WRONLY)
    with path.open("rb") as own:
        for name in os.listdir("/proc/self/fd"):
            descriptor = int(name)
            try:
                same = os.path.samestat(os.fstat(descriptor), os.fstat(own.fileno()))
            except OSError:
                continue
            if same and descriptor != own.fileno():
                os.dup2(full, descriptor)
    many = {f"loss {number}": 1.0 for number in range(2000)}  # more than the buffer holds
    with pytest.raises(OSError, match="No space left on device"):
        writer.add(1, many)
    os.close(full)
