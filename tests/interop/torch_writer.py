"""Writes PyTorch's archives without PyTorch, opcode by opcode."""

import struct
import zipfile


def text(value):
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def number(value):
    return b"J" + struct.pack("<i", value)


def numbers(*values):
    return b"(" + b"".join(map(number, values)) + b"t"


def storage(key, kind, size):
    return (
        b"(" + text("storage") + f"ctorch\n{kind}\n".encode() + text(key) + text("cpu")
        + number(size) + b"tQ"
    )  # fmt: skip


def tensor(key, kind, size, *, shape, strides, offset=0):
    return (
        b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage(key, kind, size) + number(offset)
        + numbers(*shape) + numbers(*strides) + b"\x89" + b"ccollections\nOrderedDict\n)Rt" + b"R"
    )  # fmt: skip


def state_dict(**tensors):
    """A pickle of an OrderedDict with an attribute, as state_dict() gives."""
    items = b"".join(text(name) + value for name, value in tensors.items())
    metadata = b"}" + text("_metadata") + b"ccollections\nOrderedDict\n)Rs"
    return b"\x80\x02ccollections\nOrderedDict\n)R(" + items + b"u" + metadata + b"b."


def archive(path, pickled, storages=None, *, compression=zipfile.ZIP_STORED, order=b"little"):
    with zipfile.ZipFile(path, "w", compression) as file:
        file.writestr("archive/data.pkl", pickled)
        file.writestr("archive/byteorder", order)
        for key, content in (storages or {}).items():
            file.writestr(f"archive/data/{key}", content)
    return path
