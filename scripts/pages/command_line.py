"""The reference of the command line, from the commands themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from rlctl.cli.app import EXIT_CODES, make_command


def page() -> str:
    """The page in Markdown."""
    root = make_command()
    parts = [f"# Command line\n\n{root.help} `rlctl COMMAND --help` says the same as this page.\n"]
    codes = re.findall(r"^ +(\d+)  (.*)$", EXIT_CODES, re.MULTILINE)
    parts.append(
        "\n## Exit codes\n\n| code | |\n|---|---|\n" + "".join(f"| {code} | {what} |\n" for code, what in codes)
    )
    for name, command in _all("rlctl", root):
        parts.append(f"\n## {name}\n\n{_section(name, command)}")
    return "".join(parts)


def _all(name: str, group: Any) -> Iterator[tuple[str, Any]]:
    """Every command with its full name; a group before its own."""
    for word, command in group.commands.items():
        if not command.hidden:
            yield f"{name} {word}", command
            if hasattr(command, "commands"):
                yield from _all(f"{name} {word}", command)


def _section(name: str, command: Any) -> str:
    shown = [one for one in command.params if not getattr(one, "hidden", False)]
    arguments = [one for one in shown if one.param_type_name == "argument"]
    options = [one for one in shown if one.param_type_name == "option" and one.name != "help"]
    words = [name, *(_word(one) for one in arguments), *(["[OPTIONS]"] if options else [])]
    if hasattr(command, "commands"):
        words.append("COMMAND")
    text = [f"```text\n{' '.join(words)}\n```\n", f"\n{command.help}\n"]
    if arguments or options:
        text.append("\n| | | default |\n|---|---|---|\n")
        text += [f"| `{one.metavar}` | {_cell(one.help)} | |\n" for one in arguments]
        text += [f"| {_names(one)} | {_cell(one.help)} | {_default(one)} |\n" for one in options]
    return "".join(text)


def _word(argument: Any) -> str:
    word = f"{argument.metavar}..." if argument.nargs == -1 else argument.metavar
    return word if argument.required else f"[{word}]"


def _names(option: Any) -> str:
    choices = [choice.value for choice in getattr(option.type_descriptor, "choices", None) or ()]
    value = "" if option.is_flag else f" {'|'.join(choices) or option.metavar or 'VALUE'}"
    return ", ".join(f"`{name}{value}`" for name in [*option.opts, *option.secondary_opts])


def _default(option: Any) -> str:
    if option.is_flag or option.default in (None, ()):
        return ""
    return f"`{getattr(option.default, 'value', option.default)}`"


def _cell(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "&#124;")
