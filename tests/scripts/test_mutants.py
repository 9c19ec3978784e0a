"""Faults that scripts/mutants.py makes, literal for literal."""

import pytest

from scripts import mutants


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return a < b", ["return None", "return a <= b"]),
        ("x = a not in b", ["x = a in b"]),
        ("x = not a", ["x = a"]),
        ("x = (a + 1) - b", ["x = (a + 1) + b", "x = (a - 1) - b", "x = (a + 2) - b"]),
        ("if a and b: pass", ["if not (a and b): pass", "if a or b: pass"]),
        ("x = 'é' if a else True", ["x = 'é' if not (a) else True"]),
        ("x: int = a", []),
    ],
)
def test_each_fault_changes_one_place(body, expected):
    source = f"def f(a, b):\n    {body}\n".encode()
    found = [mutant.apply(source).decode() for mutant in mutants.mutants_of("f.py", source)]
    assert found == [f"def f(a, b):\n    {text}\n" for text in expected]
