"""Damaged files out of whole ones: flipped bits, cuts, and values that no writer would write.

    rng = random.Random(0)
    mutant(b'{"size": 3}', "json", rng)         # b'{"size": 9223372036854775808}', for example

What a file is made of is kept as it is where only a whole file gets past the first check: the
length of a header, a gzip member's checksum, an archive's directory.
"""

import gzip
import io
import json
import random
import zipfile
import zlib
from collections.abc import Callable
from typing import Any

_VALUES: tuple[Any, ...] = (
    -1, 0, 1, 3, 255, 1 << 16, 1 << 28, (1 << 31) - 1, 1 << 31, (1 << 63) - 1, 1 << 63,
    -(1 << 63), 1 << 70, 10**400,
    0.5, -0.0, 1e300, float("nan"), float("inf"), True, False, None,
    "", "a", "\0", "\ud800", "../../a", "x" * 5000, "t5x_lite.models.t5:T5Config", "1",
    "(.*)*x", "(?:(?:a?){99}){99}", "/etc/passwd",
    [], {}, [1, [2]], ["a"], {"a": 1}, {"type": "float", "value": "x"}, [0] * 5000, [True], [-1, 2],
)  # fmt: skip
_DEEP = (b"[" * 200_000, b'{"a":' * 100_000, b"[" * 800 + b"]" * 800, b"[" * 5000 + b"]" * 5000)
_WORDS = (b"", b"\0", b"\xff", b"-1", b"9" * 30, b"9" * 5000, b"1e400", b'"', b"\t", b"\n", b"\r",
          b"{", b"[" * 3000, "é".encode(), b"\xed\xa0\x80", b"x" * 100_000)  # fmt: skip
_NUMBERS = tuple(
    number.to_bytes(size, order)
    for size in (2, 4, 8)
    for number in (0, 1, 1 << (8 * size - 1), (1 << 8 * size) - 1, (1 << 8 * size - 2) - 1)
    for order in ("little", "big")
)


def mutant(content: bytes, form: str, rng: random.Random) -> bytes:
    """A damaged file.

    Args:
      content: of the whole one.
      form: a name in `FORMS`.
      rng: decides.
    """
    plain = rng.random() < 0.25
    return _bytes(content, rng) if plain else FORMS[form](content, rng)


def _bytes(content: bytes, rng: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 3))):
        at = rng.randrange(len(changed) + 1)
        kind = rng.randrange(6)
        if kind == 0 and at < len(changed):
            changed[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del changed[at:]
        elif kind == 2:
            del changed[at : at + rng.choice((1, 8, 300))]
        elif kind == 3:
            start = rng.randrange(len(content) + 1)
            changed[at:at] = content[start : start + rng.choice((1, 8, 300))]
        elif kind == 4:
            number = rng.choice(_NUMBERS)
            changed[at : at + len(number)] = number
        else:
            changed[at:at] = rng.choice(_WORDS)
    return bytes(changed)


def _text(content: bytes, rng: random.Random) -> bytes:
    """Another entry in the place of one, where separators divide them."""
    separator = rng.choice((b"\t", b"\n", b",", b" "))
    entries = content.split(separator)
    at = rng.randrange(len(entries))
    entries[at : at + rng.randrange(2)] = [rng.choice(_WORDS)]
    return separator.join(entries)


def _json(content: bytes, rng: random.Random) -> bytes:
    """Another value in the place of one, at any depth."""
    if rng.random() < 0.05:
        return rng.choice(_DEEP)
    tree = {"": json.loads(content)}
    node: Any = tree
    while True:
        keys = list(node) if isinstance(node, dict) else range(len(node))
        key = rng.choice(keys)
        if isinstance(node[key], dict | list) and node[key] and rng.random() < 0.85:
            node = node[key]
            continue
        break
    kind = rng.randrange(9)
    if kind == 0:
        del node[key]
    elif kind == 8:  # the same key twice, with two values
        text, place = json.dumps(tree.get("")), json.dumps(key)
        twice = f"{place}: {json.dumps(rng.choice(_VALUES))}, {place}:"
        return text.replace(f"{place}:", twice, 1).encode()
    elif kind == 1 and isinstance(node, dict):
        node[str(rng.choice(_VALUES))[:100]] = node.pop(key)
    elif kind == 2:
        node[key] = [node[key]]
    elif kind == 3:
        text, place = json.dumps(tree.get("")), json.dumps(node[key])
        return text.replace(place, rng.choice(_DEEP).decode(), 1).encode()
    else:
        node[key] = rng.choice(_VALUES)
    return json.dumps(tree.get("")).encode()


def _json_lines(content: bytes, rng: random.Random) -> bytes:
    lines = content.split(b"\n")
    at = rng.choice([i for i, line in enumerate(lines) if line])
    lines[at] = _json(lines[at], rng)
    return b"\n".join(lines)


def _safetensors(content: bytes, rng: random.Random) -> bytes:
    end = 8 + int.from_bytes(content[:8], "little")
    header = _json(content[8:end], rng)
    return len(header).to_bytes(8, "little") + header + content[end:]


def _gzip(content: bytes, rng: random.Random) -> bytes:
    return gzip.compress(rng.choice((_text, _bytes))(gzip.decompress(content), rng))


def _archive(content: bytes, rng: random.Random) -> bytes:
    """Another content of a member, with a checksum that fits; sometimes compressed."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(file, "w") as new:
        members = {info.filename: old.read(info) for info in old.infolist()}
        name = rng.choice([*members, *[n for n in members if n.endswith(".pkl")] * 5])
        members[name] = _bytes(members[name], rng)
        for member, value in members.items():
            packed = member == name and rng.random() < 0.1
            new.writestr(member, value, zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED)
    return file.getvalue()


def _compressed(content: bytes, rng: random.Random) -> bytes:
    """Of a chunk of zarr: what is in it, or more of it than there should be."""
    inside = zlib.decompress(content, 31)
    return gzip.compress(rng.choice((_bytes(inside, rng), inside * 1000, bytes(1 << 26), b"")))


FORMS: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "binary": _bytes,
    "text": _text,
    "json": _json,
    "jsonl": _json_lines,
    "safetensors": _safetensors,
    "gzip": _gzip,
    "archive": _archive,
    "chunk": _compressed,
}
