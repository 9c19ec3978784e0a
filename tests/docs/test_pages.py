"""The shape of the pages: lengths, links, navigation, commands at the top, recipes."""

import ast
import re

import pytest

from t5x_lite import config
from tests.docs.commands import ROOT, blocks

DOCS = ROOT / "docs"
PAGES = sorted(path for path in DOCS.rglob("*.md") if "adr" not in path.parts)
GUIDES = sorted((DOCS / "guides").glob("*.md"))
OUTSIDE = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
EXPLANATIONS = {"order.md"}
"""Pages below guides/ that explain and have no command to begin with."""


def name(path):
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize(
    ("page", "lines"),
    [("README.md", 250), ("docs/benchmarks.md", 120), *((name(path), 150) for path in GUIDES)],
)
def test_a_page_is_short(page, lines):
    assert len((ROOT / page).read_text().splitlines()) <= lines


@pytest.mark.parametrize("path", GUIDES, ids=name)
def test_a_guide_has_a_command_in_its_first_lines(path):
    if path.name in EXPLANATIONS:
        return
    first = next(block for block in blocks(path) if block.has_command)
    assert int(first.where.rpartition(":")[2]) <= 10


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_a_page_has_one_title_and_names_the_next_one(path):
    text = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert len(re.findall(r"^# ", text, flags=re.MULTILINE)) == 1
    assert text.startswith("# ")
    assert re.search(r"^(Next: |## Next$)", text, flags=re.MULTILINE) or path.name == "tpu.md"


@pytest.mark.parametrize("path", [*PAGES, *OUTSIDE], ids=name)
def test_links_of_a_page_lead_to_files(path):
    text = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target or target.startswith("#"):
            continue
        to = (path.parent / target.partition("#")[0]).resolve()
        assert to.exists(), f"{name(path)}: {target}"


@pytest.mark.parametrize("path", [*PAGES, *OUTSIDE[:2]], ids=name)
def test_pages_are_named_by_links(path):
    text = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert re.findall(r"`docs/(?:guides|tutorials|reference|explanations)/\w+\.md`", text) == []


def test_every_page_is_in_the_navigation():
    listed = (ROOT / "scripts/docs/mkdocs.yml").read_text().partition("\nnav:\n")[2]
    pages = [path.relative_to(DOCS).as_posix() for path in PAGES if "experiments" not in path.parts]
    assert [page for page in pages if not re.search(rf"\b{re.escape(page)}$", listed, re.M)] == []


WORDS = {
    "anew|afresh": "again",
    "judgements?": "judgment",
    "besides": "also",
    "goes on|go on|went on": "resumes, continues",
    "refuses?|refused": "rejects, is rejected",
    "by lot": "at random",
    "in place of": "instead of",
    "one's own|of yours": "your",
    "(?:labell|modell|normalis|initialis|tokenis)\\w*": "the American spelling",
}
"""Words that a page does not use, as a regular expression, and what it says instead."""

STYLED = [path for path in PAGES if "experiments" not in path.parts] + OUTSIDE[:2]


def prose(path):
    """Yield the paragraphs and list items of a page, without code, tables and link targets."""
    text = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"`[^`]*`", "code", re.sub(r"\]\([^)]*\)", "]", text))
    for paragraph in re.split(r"\n\s*\n|^\s*(?:-|\d+\.) ", text, flags=re.MULTILINE):
        if paragraph.strip() and not paragraph.strip().startswith(("|", "#", "<!--", "!")):
            yield " ".join(paragraph.split())


@pytest.mark.parametrize("path", STYLED, ids=name)
def test_sentences_and_paragraphs_are_short(path):
    for paragraph in prose(path):
        assert len(paragraph.split()) <= 85, paragraph
        for sentence in re.split(r"(?<=[.:;?!]) ", paragraph):
            assert len(sentence.split()) <= 40, sentence


@pytest.mark.parametrize("path", STYLED, ids=name)
def test_a_page_uses_the_words_of_the_field(path):
    for paragraph in prose(path):
        for words, instead in WORDS.items():
            found = re.search(rf"\b(?:{words})\b", paragraph, flags=re.IGNORECASE)
            assert found is None, f"{found and found.group()}: say {instead!r}; {paragraph}"


def recipes():
    return re.findall(r"^\| `([\w/]+\.py)` \|.*$", (DOCS / "recipes.md").read_text(), re.MULTILINE)


def test_every_config_is_a_recipe():
    configs = ROOT / "configs"
    paths = [*configs.glob("tiny_*.py"), *configs.glob("*/*.py")]
    assert sorted(recipes()) == sorted(path.relative_to(configs).as_posix() for path in paths)


@pytest.mark.parametrize("recipe", recipes())
def test_a_recipe_states_batch_and_steps_of_its_config(recipe):
    (row,) = re.findall(
        rf"^\| `{re.escape(recipe)}` \|.*$", (DOCS / "recipes.md").read_text(), re.MULTILINE
    )
    batch = row.split(" | ")[3].replace(",", "")
    size = re.fullmatch(r"(\d+) x ([\d /]+) (\d+)", batch)
    assert size is not None
    rows, lengths, steps = size.groups()
    experiment = config.load(str(ROOT / "configs" / recipe), [])
    data = experiment.data
    assert (int(rows), int(steps)) == (data.batch_size, experiment.steps)
    stated = [int(length) for length in lengths.split(" / ")]
    assert stated == [data.inputs_length, data.targets_length][: len(stated)]


def test_a_recipe_of_the_gallery_has_a_docstring():
    for recipe in recipes():
        assert ast.get_docstring(ast.parse((ROOT / "configs" / recipe).read_text())), recipe
