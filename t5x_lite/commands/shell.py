"""The command about the shell: completion."""

import dataclasses
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import tyro

from t5x_lite.commands.options import PROG


@dataclasses.dataclass(frozen=True, kw_only=True)
class Completion:
    """Print the script by which a shell completes commands, options and their values.

        source <(t5x-lite completion bash)    # in ~/.bashrc; zsh: in ~/.zshrc, after compinit
        t5x-lite completion fish > ~/.config/fish/completions/t5x-lite.fish

    Attributes:
      shell: bash, zsh or fish.
    """

    shell: Annotated[
        Literal["bash", "zsh", "fish"], tyro.conf.Positional, tyro.conf.arg(metavar="SHELL")
    ]
    takes_overrides: ClassVar[bool] = False

    def run(self, _: Sequence[str]) -> None:
        """Calls run.completion.completion."""
        from t5x_lite.commands import COMMANDS
        from t5x_lite.run.completion import completion

        print(completion(self.shell, COMMANDS, prog=PROG), end="")
