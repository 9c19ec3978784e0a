import ast
import pathlib

from t5x_lite import c4
from t5x_lite.c4.pages import STAGES
from t5x_lite.c4.rules import SOURCES


def test_stages_are_those_of_the_tally():
    assert tuple(SOURCES) == STAGES


def test_every_rule_cites_its_source():
    cited = [source for rules in SOURCES.values() for source in rules.values()]
    assert all("c4_utils." in source or "JMLR 2020, 2.2" in source for source in cited)


def test_every_rule_that_is_counted_has_a_source():
    """Literal arguments of drop_page and drop_lines anywhere in the package."""
    found = set()
    for path in pathlib.Path(c4.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            if node.func.attr in ("drop_page", "drop_lines") and len(node.args) >= 2:
                stage, rule = node.args[:2]
                if isinstance(stage, ast.Constant) and isinstance(rule, ast.Constant):
                    found.add((stage.value, rule.value))
    known = {(stage, rule) for stage, rules in SOURCES.items() for rule in rules}
    assert found
    assert found - known == set()
