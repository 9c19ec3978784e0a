import ast
import dataclasses
import pathlib

from t5x_lite import c4
from t5x_lite.c4.config import OPTIONS, SOURCES, Cleaning, option
from t5x_lite.c4.pages import STAGES


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


def test_options_are_fields_of_cleaning_and_rules_are_those_with_a_source():
    fields = {field.name for field in dataclasses.fields(Cleaning)}
    for stage, rules in OPTIONS.items():
        assert set(rules) <= set(SOURCES[stage])
        assert set(rules.values()) <= fields
    without = {(stage, rule) for stage in SOURCES for rule in SOURCES[stage]} - {
        (stage, rule) for stage in OPTIONS for rule in OPTIONS[stage]
    }
    assert without == {("read", "no_url"), ("read", "no_text"), ("read", "no_timestamp")}
    assert option("clean", "too_few_words") == "--cleaning.min-words"
    assert option("read", "no_url") == ""
