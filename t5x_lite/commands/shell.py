"""The command completion, which prints a script for completion in the shell.

The script contains all names as text, so that a completion does not start Python. The completed
config fields are the fields of a T5 config.
"""

import dataclasses
import shlex
import types
import typing
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from t5x_lite.commands.command import PROG, command
from t5x_lite.core.options import is_config, is_configs, is_positional

if TYPE_CHECKING:
    from t5x_lite.config import Experiment

Shell = Literal["bash", "zsh", "fish"]
Options = Mapping[str, tuple[str, ...]]
"""Option name -> its possible values; () for an option with any value."""


@command
def completion(
    shell: Annotated[Shell, tyro.conf.Positional, tyro.conf.arg(metavar="SHELL")],
) -> None:
    """Print a shell script that completes commands, options and option values.

    Example:
        source <(t5x-lite completion bash)    # in ~/.bashrc; zsh: in ~/.zshrc, after compinit
        t5x-lite completion fish > ~/.config/fish/completions/t5x-lite.fish

    Args:
      shell: name of the shell: bash, zsh or fish.
    """
    from t5x_lite.commands import COMMANDS

    print(script(shell, COMMANDS, prog=PROG), end="")


def script(shell: Shell, commands: Mapping[str, Any], *, prog: str) -> str:
    """Return a script that completes commands and options in a shell.

    Args:
      shell: name of the shell.
      commands: command name, of one or two words -> options dataclass of the command.
      prog: name of the program to complete.
    """
    fields = options_of(_config())
    table = {
        name: {
            **options_of(command),
            **(fields if "config" in command.__dataclass_fields__ else {}),
            "--help": (),
        }
        for name, command in commands.items()
    }
    return _fish(table, prog) if shell == "fish" else _bash(table, prog, zsh=shell == "zsh")


def _config() -> "Experiment":
    from t5x_lite.config import Experiment
    from t5x_lite.data.config import Data
    from t5x_lite.models.t5 import T5Config
    from t5x_lite.objectives.likelihood import Seq2Seq
    from t5x_lite.optim.config import Adafactor, Constant

    return Experiment(
        model=T5Config(
            vocab_size=128,
            d_model=8,
            d_kv=4,
            d_ff=8,
            num_heads=2,
            num_encoder_layers=1,
            num_decoder_layers=1,
        ),
        objective=Seq2Seq(),
        data=Data(task="tasks.text:span_corruption", vocabulary="vocabulary"),
        optimizer=Adafactor(schedule=Constant(value=1e-3)),
        steps=1,
    )


def options_of(target: Any, *, prefix: str = "--") -> dict[str, tuple[str, ...]]:
    """Return option name -> possible values for a dataclass and its nested dataclasses.

    Args:
      target: dataclass, or instance of a dataclass.
      prefix: prefix of every option name.
    """
    cls = target if isinstance(target, type) else type(target)
    hints = typing.get_type_hints(cls, include_extras=True)
    plain = typing.get_type_hints(cls)
    options: dict[str, tuple[str, ...]] = {}
    for field in dataclasses.fields(cls):
        name = prefix + field.name.replace("_", "-")
        value = getattr(target, field.name, None)
        hint = plain[field.name]
        if is_config(value):
            options |= options_of(value, prefix=f"{name}.")
        elif dataclasses.is_dataclass(hint):
            options |= options_of(hint, prefix=f"{name}.")
        elif not is_configs(hint) and not is_positional(hints[field.name]):
            options[name] = values_of(hint) if is_config(target) or hint is not bool else ()
    return options


def values_of(hint: Any) -> tuple[str, ...]:
    """Return the values of a Literal or bool annotation as words; () for other annotations."""
    if hint is bool:
        return ("True", "False")
    if typing.get_origin(hint) is Literal:
        return tuple(map(str, typing.get_args(hint)))
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return tuple(word for part in typing.get_args(hint) for word in values_of(part))
    return ()


_BASH = """\
# completion of {prog}; made by: {prog} completion {shell}
_{function}() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}} command options values
  COMPREPLY=()
  command=${{COMP_WORDS[1]}}
  case "${{COMP_WORDS[1]}} ${{COMP_WORDS[2]}}" in
    {two}) command="${{COMP_WORDS[1]}} ${{COMP_WORDS[2]}}";;
  esac
  if [[ $COMP_CWORD -eq 1 ]]; then
    COMPREPLY=($(compgen -W "{first} --help --version" -- "$cur")); return
  fi
  if [[ $COMP_CWORD -eq 2 ]]; then
    case "${{COMP_WORDS[1]}}" in
{second}
    esac
  fi
  case "$command" in
{options}
  esac
  if [[ $cur == -* ]]; then
    COMPREPLY=($(compgen -W "$options" -- "$cur")); return
  fi
  case "$command $prev" in
{values}
  esac
  if [[ -n $values ]]; then
    COMPREPLY=($(compgen -W "$values" -- "$cur"))
  fi
}}
complete -o default -o bashdefault -F _{function} {prog}
"""


def _bash(table: Mapping[str, Options], prog: str, *, zsh: bool) -> str:
    two = [name for name in table if " " in name]
    groups: dict[str, list[str]] = {}
    for name in two:
        groups.setdefault(name.split()[0], []).append(name.split()[1])
    second = [
        f'      {first}) COMPREPLY=($(compgen -W "{" ".join(rest)}" -- "$cur")); return;;'
        for first, rest in groups.items()
    ]
    options = [
        f"    {shlex.quote(name)}) options={shlex.quote(' '.join(own))};;"
        for name, own in table.items()
    ]
    values = [
        f"    {shlex.quote(f'{name} {option}')}) values={shlex.quote(' '.join(words))};;"
        for name, own in table.items()
        for option, words in own.items()
        if words
    ]
    script = _BASH.format(
        prog=prog,
        shell="zsh" if zsh else "bash",
        function=prog.replace("-", "_"),
        two="|".join(shlex.quote(name) for name in two) or "''",
        first=" ".join(dict.fromkeys(name.split()[0] for name in table)),
        second="\n".join(second) or "      '') ;;",
        options="\n".join(options),
        values="\n".join(values) or "    '') ;;",
    )
    return f"autoload -U +X bashcompinit && bashcompinit\n{script}" if zsh else script


def _fish(table: Mapping[str, Options], prog: str) -> str:
    first = dict.fromkeys(name.split()[0] for name in table)
    lines = [
        f"# completion of {prog}; made by: {prog} completion fish",
        f"complete -c {prog} -n __fish_use_subcommand -f -a {shlex.quote(' '.join(first))}",
    ]
    for name, options in table.items():
        seen = " ; and ".join(f"__fish_seen_subcommand_from {word}" for word in name.split())
        if " " in name:
            word, last = name.split()
            lines.append(
                f'complete -c {prog} -n "__fish_seen_subcommand_from {word} ; and '
                f'not __fish_seen_subcommand_from {last}" -f -a {last}'
            )
        for option, words in options.items():
            values = f" -x -a {shlex.quote(' '.join(words))}" if words else ""
            lines.append(f'complete -c {prog} -n "{seen}" -l {option[2:]}{values}')
    return "\n".join(lines) + "\n"
