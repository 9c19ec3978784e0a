"""The files of a new project are Python as we write it, and the README's commands are ours."""

import re

from t5x_lite.commands import COMMANDS
from t5x_lite.commands.texts import FILES, README


def test_python_files_compile():
    for name, content in FILES.items():
        compile(content, name, "exec")
        assert max(map(len, content.splitlines())) <= 100, name


def test_the_readme_names_commands_that_exist():
    text = README.format(name="mine")
    assert "{text}" in text
    used = set(re.findall(r"t5x-lite (\w+)", text))
    assert {"train", "finetune", "evaluate", "predict", "embed", "report"} <= used <= set(COMMANDS)
