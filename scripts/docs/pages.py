"""Hooks of mkdocs: reference pages from the code, formulas as MathML, notebooks as pages, links.

Nothing that is made here is committed. MathML needs no script and no font from another host.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

import latex2mathml.converter  # noqa: E402
from mkdocs.structure.files import File, Files  # noqa: E402
from reference import SECTIONS, pages  # noqa: E402

from t5x_lite.commands import COMMANDS  # noqa: E402

OUTSIDE = {
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
    "paper.md": "configs/paper/README.md",
}
"""Page of the site -> the file outside docs/ that it shows."""

_STYLE = """
.md-typeset td code,.md-typeset th code{word-break:normal;overflow-wrap:normal}
.md-typeset .fields code{overflow-wrap:anywhere}
.md-typeset .option{white-space:nowrap}
math[display=block]{overflow-x:auto;overflow-y:hidden;margin:1em 0;font-size:1.1em}
.md-typeset .fields td:first-child code{overflow-wrap:anywhere}
.md-typeset .fields{overflow-x:auto}
.md-typeset .fields table{display:table;width:100%;table-layout:fixed}
.md-typeset .fields th:first-child{width:28%}
.md-typeset .fields th:not(:first-child):not(:last-child){width:17%}
.md-typeset .fields td{overflow-wrap:anywhere}
@media(max-width:44.9em){
.md-typeset .headerlink{display:none}
.md-typeset p:has(>img[src$=".svg"]){overflow-x:auto}
.md-typeset p>img[src$=".svg"]{max-width:none;width:44rem}
.md-typeset .fields td:nth-child(2):not(:last-child):not(:empty)::before{content:"Default: "}
.md-typeset .fields td:nth-child(3):not(:last-child):not(:empty)::before{content:"Type: "}
.md-typeset .fields thead{display:none}
.md-typeset .fields :is(table,tbody,tr,td){display:block;width:100%}
.md-typeset .fields td{border:0!important;padding:.1em .9em!important}
.md-typeset .fields td:first-child{padding-top:.7em!important}
.md-typeset .fields td:first-child code{white-space:normal}
.md-typeset .fields td:last-child{padding-bottom:.7em!important}
.md-typeset .fields tr{border-bottom:.05rem solid var(--md-default-fg-color--lightest)}
}
"""


def on_config(config: Any) -> Any:
    """The folders of the navigation become their pages."""
    docs = Path(config["docs_dir"])
    commands = [f"reference/commands/{name.replace(' ', '_')}.md" for name in COMMANDS]
    folders = {
        "experiments/": [
            f"experiments/{path.name}" for path in sorted((docs / "experiments").glob("*.md"))
        ],
        "notebooks/": [
            f"notebooks/{path.stem}.md" for path in sorted((docs / "notebooks").glob("*.ipynb"))
        ],
        "reference/": [
            {"Commands": ["reference/commands/index.md", *commands]},
            {"Config": [f"reference/config/{name}.md" for name in SECTIONS]},
        ],
    }
    config["nav"] = [expand(entry, folders) for entry in config["nav"]]
    config["extra_css"] = ["fields.css"]
    return config


def expand(entry: Any, folders: dict[str, list[Any]]) -> Any:
    """Replace each name of a folder in an entry of the navigation by the pages of the folder."""
    if isinstance(entry, dict):
        return {title: expand(inner, folders) for title, inner in entry.items()}
    if isinstance(entry, list):
        return [expand(inner, folders) for inner in entry]
    return folders.get(entry, entry)


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made from the code, the notebooks and files outside docs/."""
    made = {f"reference/{path}": text for path, text in pages().items()}
    for path in sorted((Path(config["docs_dir"]) / "notebooks").glob("*.ipynb")):
        made[f"notebooks/{path.stem}.md"] = notebook_page(path)
    for name, source in OUTSIDE.items():
        text = (ROOT / source).read_text().replace("](docs/", "](")
        for other, path in OUTSIDE.items():
            text = text.replace(f"]({path})", f"]({other})")
        made[name] = text
    made["fields.css"] = _STYLE
    for path, text in made.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Render formulas, and make links of the pages, notebooks and ADRs that a page names."""
    del config
    text = re.sub(
        r"^```math\n(.*?)^```$",
        lambda found: latex2mathml.converter.convert(
            " ".join(found.group(1).split()), display="block"
        ),
        markdown,
        flags=re.MULTILINE | re.DOTALL,
    )
    up = "../" * page.file.src_uri.count("/")

    def link(found: re.Match[str]) -> str:
        path = found.group(1)
        exists = files.get_file_from_path(path) is not None
        return f"[{found.group(0)}]({up}{path})" if exists else found.group(0)

    text = re.sub(r"(?<!\[)`docs/([\w/.-]+\.md)`", link, text)
    for name, source in OUTSIDE.items():
        text = re.sub(rf"\]\((?:\.\./)+{re.escape(source)}\)", f"]({up}{name})", text)
    return re.sub(r"\]\(((?:\.\./)*notebooks/\w+)\.ipynb\)", r"](\1.md)", text)


def on_page_content(html: str, **_: Any) -> str:
    """Keep the hyphens of an option in inline code on the line of its name."""
    return re.sub(
        r"<code>[^<]*</code>",
        lambda found: re.sub(
            r"(?<![\w-])--[a-z]", r'<span class="option">\g<0></span>', found.group(0)
        ),
        html,
    )


def notebook_page(path: Path) -> str:
    """The cells of a notebook as Markdown."""
    parts = []
    for cell in json.loads(path.read_text())["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        shown = "".join("".join(output["text"]) for output in cell.get("outputs", ()))
        if shown:
            parts.append(f"```text\n{shown}```")
    note = f"[The notebook itself]({path.name}); `tests/docs/test_notebooks.py` runs its cells."
    title, *rest = parts
    return "\n\n".join([title, note, *rest])
