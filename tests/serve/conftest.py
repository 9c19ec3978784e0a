"""One server for the tests of a file that do not change it."""

from collections.abc import Iterator

import pytest

from tests.serve.double_server import Served, serving


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving() as one:
        yield one
