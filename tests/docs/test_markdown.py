"""How commands are read out of Markdown."""

from tests.docs import commands
from tests.docs.commands import blocks, command_lines, with_extra

PAGE = """# Title

Text.

    t5x-lite train a.py --steps 3 \\
        --seed 1    # why

<!-- not run: needs a cluster -->
```bash
echo '{"inputs": "a"}' |
    t5x-lite predict --checkpoint w --input - --output -
t5x-lite report w && ls
```

```python
import t5x_lite
```

<!-- test: --steps 2 -->
```bash
t5x-lite train a.py \\
    --workdir w
t5x-lite report w
```
"""


def read(tmp_path, monkeypatch):
    monkeypatch.setattr(commands, "ROOT", tmp_path)
    (tmp_path / "a.md").write_text(PAGE)
    return blocks(tmp_path / "a.md")


def test_blocks_and_their_notes(tmp_path, monkeypatch):
    found = read(tmp_path, monkeypatch)
    assert [(block.language, block.has_command) for block in found] == [
        ("", True), ("bash", True), ("python", False), ("bash", True),
    ]  # fmt: skip
    assert [block.not_run for block in found] == [None, "needs a cluster", None, None]
    assert found[-1].extra == "--steps 2"
    assert found[0].where == "a.md:5"


def test_command_lines(tmp_path, monkeypatch):
    first, second, _, last = read(tmp_path, monkeypatch)
    assert command_lines(first) == [["train", "a.py", "--steps", "3", "--seed", "1"]]
    assert command_lines(second) == [
        ["predict", "--checkpoint", "w", "--input", "-", "--output", "-"], ["report", "w"],
    ]  # fmt: skip
    assert with_extra(last) == "t5x-lite train a.py --workdir w --steps 2\nt5x-lite report w"
