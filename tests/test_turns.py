"""The turns of long tests."""

import pytest

from tests import turns


class Item:
    """A test with marks."""

    def __init__(self, nodeid, *marks):
        self.nodeid, self.marks = nodeid, marks

    def get_closest_marker(self, name):
        return name if name in self.marks else None


@pytest.mark.parametrize(
    ("marks", "times"), [((), 160), (("slow",), 10), (("oracle",), 10), (("slow", "exhaustive"), 1)]
)
def test_each_test_has_its_turn(marks, times):
    numbers = [f"{number:040x}"[-12:] + "0" * 28 for number in range(160)]
    for name in ("tests/a.py::test_a", "tests/a.py::test_b[case]", "tests/b.py::test_c"):
        assert sum(turns.is_due(Item(name, *marks), commit) for commit in numbers) == times


def test_the_cases_of_a_test_have_it_together():
    cases = [Item(f"tests/a.py::test_a[{case}]", "slow") for case in "abc"]
    for number in range(16):
        assert len({turns.is_due(case, f"{number:x}") for case in cases}) == 1
