"""How the optional parts of this package are installed, said in one way everywhere.

    install_command("c4")      # in the checkout: pip install -e ".[c4]" -c constraints.txt
                               # of an installed wheel: pip install "t5x-lite[c4]"

A wheel that is installed already satisfies `t5x-lite`, so that pip adds what the extra names and
nothing of that name from elsewhere. In a checkout it is the command of the README, with paths where
the current directory is another one.
"""

import shlex
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]


def install_command(*extras: str, root: Path = _ROOT) -> str:
    """The command that installs extras, such as "data" and "beam", where this package is.

    Args:
      extras: their names in pyproject.toml.
      root: the directory that holds the package.
    """
    wanted, constraints = f"[{','.join(extras)}]", root / "constraints.txt"
    if not ((root / "pyproject.toml").is_file() and constraints.is_file()):
        return f'pip install "t5x-lite{wanted}"'
    if root == Path.cwd():
        return f'pip install -e ".{wanted}" -c constraints.txt'
    return f'pip install -e "{root}{wanted}" -c {shlex.quote(str(constraints))}'
