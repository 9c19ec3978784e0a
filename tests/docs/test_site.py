"""What the site is made of: pages from the code, formulas, links; and the whole build."""

import importlib.util
import re
import subprocess
import sys

import pytest

from t5x_lite.commands import COMMANDS
from tests.docs.commands import ROOT

pytest.importorskip("mkdocs")
pytest.importorskip("latex2mathml")


@pytest.fixture(scope="module")
def pages():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", list(sys.path))
        path = ROOT / "scripts" / "docs" / "pages.py"
        spec = importlib.util.spec_from_file_location("docs_pages", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module


@pytest.fixture(scope="module")
def made(pages):
    return pages.pages()


def test_every_command_has_a_page(made):
    for name in COMMANDS:
        assert f"commands/{name.replace(' ', '_')}.md" in made
    page = made["commands/serve.md"]
    assert page.startswith("# serve\n")
    assert "t5x-lite serve --checkpoint DIR [DIR ...] [OPTIONS]" in page
    assert "<td><code>--batch-size N</code></td><td>32</td>" in page
    assert "--adapters.use" in page
    assert "WORKDIR" in made["commands/report.md"]


def test_every_option_says_what_it_is(made):
    silent = {
        (path, row.partition("</td>")[0])
        for path, page in made.items()
        for row in page.split("<tr>")
        if path.startswith("commands/") and row.endswith("<td></td></tr>")
    }
    assert silent == set()


def test_every_field_of_an_experiment_has_a_row(made):
    page = made["config/experiment.md"]
    for name in ("## Experiment", "## Checkpoints", "## Evaluation", "## MeshConfig", "## Init"):
        assert name in page
    assert "<td><code>microbatches</code></td><td>1</td><td>int, at least 1</td>" in page
    assert "<td>float | None, above 0</td>" in page
    assert "## T5Config" in made["config/models.md"]
    assert "## RetroMAE" in made["config/objectives.md"]
    assert "## Groups" in made["config/data.md"]
    assert "## AdamW" in made["config/optimizers.md"]
    assert "## Lora" in made["config/adapters.md"]
    assert "## Cleaning" in made["config/cleaning.md"]


def test_a_notebook_becomes_a_page(pages):
    page = pages.notebook_page(ROOT / "docs" / "notebooks" / "t5.ipynb")
    assert page.startswith("# A T5 from Python")
    assert "```python\nimport t5x_lite" in page


def test_the_site_is_built_without_a_warning(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file",
         "scripts/docs/mkdocs.yml", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    # The theme announces its successor in a box, which names a variable with this word.
    assert [line for line in done.stderr.splitlines() if line.startswith("WARNING")] == []
    site = tmp_path / "site"
    encoders = (site / "explanations/encoders.html").read_text()
    assert "<math" in encoders
    assert "```" not in encoders
    adapters = (site / "guides/adapters.html").read_text()
    assert '<code><span class="option">--a</span>dapters.base-dtype' in adapters
    assert "<code>export hf</code>" in (site / "reference/commands/index.html").read_text()
    for page in site.rglob("*.html"):
        text = page.read_text()
        outside = re.findall(r"<(?:script|link|img)[^>]+(?:src|href)=\"(?:https?:)?//[^\"]+", text)
        assert outside == [], page


def test_code_in_a_docstring_is_escaped_once(made):
    page = made["commands/vocab.md"]
    assert "\nt5x-lite vocab --input en.txt=10 'de/*.txt=1'" in page
    assert not [path for path, text in made.items() if "&#x27;" in text.partition("<div")[0]]


def test_a_notebook_s_page_shows_outputs(pages):
    page = pages.notebook_page(ROOT / "docs" / "notebooks" / "t5.ipynb")
    assert "```text\n" in page


def test_the_site_without_pytest_is_no_failure():
    script = (ROOT / "scripts" / "docs.sh").read_text()
    assert "if python -c 'import pytest'" in script
