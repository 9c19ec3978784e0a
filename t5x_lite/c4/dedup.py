"""Which lines or spans of sentences are on more than one page, and which pages lose them.

    write_keys(path, bucket=3, entries=[(key, owner, page, position), ...])
    find_losers(directory, losers, ...)
    read_losers(losers, bucket=3) == {page: [position, ...]}

A key is the 16 bytes of a line or span, an owner the 16 bytes of a page: of all pages with a key
the one with the smallest owner keeps it. DuckDB does it, outside of memory: first the keys that
occur more than once are found, by half of their bytes, which leaves few rows to be compared.
"""

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from t5x_lite.errors import InputError
from t5x_lite.extras import install_command

_ROWS = 1 << 18
_REMEDY = "give it room on the disk or more memory, and start the same command again"


def _duckdb() -> Any:
    try:
        import duckdb
    except ImportError as error:
        raise InputError(
            f"deduplicating needs duckdb, which is missing: {install_command('c4')}"
        ) from error
    return duckdb


def check_installed() -> None:
    """Says, by an InputError, that the package is missing, before the work and not after it."""
    _duckdb()


@contextlib.contextmanager
def _connect(**settings: Any):
    duckdb = _duckdb()
    config = {"autoinstall_known_extensions": False, "autoload_known_extensions": False}
    try:
        with duckdb.connect(config={**config, **settings}) as database:
            yield database
    except duckdb.Error as error:
        what = " ".join(str(error).split("\n")[0].split())[:300]
        raise InputError(f"deduplicating failed: {what}; {_REMEDY}") from error


def _quoted(path: str | os.PathLike[str]) -> str:
    return "'" + os.fspath(path).replace("'", "''") + "'"


def owner_key(url_digest: bytes, page: int) -> bytes:
    """16 bytes that order pages as `page_rank` does: the MD5 of the URL, then the page's number.

    Args:
      url_digest: of its URL.
      page: its number within its bucket, where pages of one URL stand by `page_rank`.
    """
    return url_digest[:12] + page.to_bytes(4, "big")


def write_keys(path: Path, bucket: int, entries: Iterable[tuple[bytes, bytes, int, int]]) -> None:
    """Writes the keys of a bucket's pages, each once for a page.

    Args:
      path: a Parquet file, which is there whole or not at all.
      bucket: the pages'.
      entries: key, owner, the page's number, the number of the line or span within it.
    """
    rows = list(entries)
    keys = np.frombuffer(b"".join(row[0] for row in rows), ">u8").reshape(-1, 2)
    owners = np.frombuffer(b"".join(row[1] for row in rows), ">u8").reshape(-1, 2)
    numbers = np.array([row[2:] for row in rows], np.uint32).reshape(-1, 2)
    columns = {
        "key_high": keys[:, 0].astype(np.uint64),
        "key_low": keys[:, 1].astype(np.uint64),
        "owner_high": owners[:, 0].astype(np.uint64),
        "owner_low": owners[:, 1].astype(np.uint64),
        "page": numbers[:, 0].copy(),
        "position": numbers[:, 1].copy(),
    }
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with _connect(threads=1) as database:
        database.register("columns", columns)
        database.execute(
            f"COPY (SELECT *, {bucket}::UINTEGER AS bucket FROM columns) TO {_quoted(temporary)} "
            f"(FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE {_ROWS})"
        )
    _publish(temporary, path)


def _publish(unfinished: Path, path: Path) -> None:
    with unfinished.open("rb") as file:
        os.fsync(file.fileno())
    unfinished.replace(path)


def find_losers(
    keys: Path, losers: Path, *, temporary: Path, threads: int, memory_limit: int
) -> int:
    """Finds what each page loses.

    Args:
      keys: the directory of the files of `write_keys`.
      losers: the Parquet file to be written, whole or not at all.
      temporary: a directory to spill to.
      threads: of DuckDB.
      memory_limit: of DuckDB, in bytes.

    Returns:
      How many lines or spans are lost.
    """
    unfinished = losers.with_name(f".{losers.name}.{os.getpid()}")
    with _connect(
        threads=threads,
        memory_limit=f"{max(memory_limit >> 20, 64)}MiB",
        temp_directory=str(temporary),
        preserve_insertion_order=False,
    ) as database:
        rows = f"read_parquet({_quoted(keys / '*.parquet')})"
        database.execute(
            f"CREATE TEMP TABLE repeated AS SELECT key_high FROM {rows} "
            "GROUP BY key_high HAVING count(*) > 1"
        )
        owner = "(owner_high::UHUGEINT << 64) | owner_low::UHUGEINT"
        database.execute(
            "CREATE TEMP TABLE candidates AS "
            f"SELECT key_high, key_low, {owner} AS owner, bucket, page, position "
            f"FROM {rows} SEMI JOIN repeated USING (key_high)"
        )
        database.execute(
            "CREATE TEMP TABLE winners AS SELECT key_high, key_low, min(owner) AS winner "
            "FROM candidates GROUP BY key_high, key_low HAVING count(*) > 1"
        )
        database.execute(
            "COPY (SELECT bucket, page, position FROM candidates "
            "JOIN winners USING (key_high, key_low) WHERE owner <> winner "
            f"ORDER BY bucket, page, position) TO {_quoted(unfinished)} "
            f"(FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE {_ROWS})"
        )
        found = database.execute(f"SELECT count(*) FROM read_parquet({_quoted(unfinished)})")
        row = found.fetchone()
    _publish(unfinished, losers)
    return int(row[0]) if row else 0


def read_losers(losers: Path, bucket: int) -> dict[int, list[int]]:
    """What the pages of a bucket lose: {page: numbers of lines or spans}."""
    with _connect(threads=1) as database:
        found = database.execute(
            f"SELECT page, position FROM read_parquet({_quoted(losers)}) WHERE bucket = ?",
            [bucket],
        ).fetchnumpy()
    lost: dict[int, list[int]] = {}
    for page, position in zip(found["page"].tolist(), found["position"].tolist(), strict=True):
        lost.setdefault(page, []).append(position)
    return lost
