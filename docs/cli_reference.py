"""Write the reference of the command line, docs/cli-reference.md, from what the commands say of themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from inspect import cleandoc
from pathlib import Path

import click

from headgate.cli.main import main

PAGE = Path(__file__).parent / "cli-reference.md"

HEAD = """# Command reference

Every command with its options, as `--help` tells them; made by `python docs/cli_reference.py`. What they are for is in
[The command line](cli.md). Where a command takes `[MODULE:APP]`, the app may also be named by `-A` or `HEADGATE_APP`.
"""

EVERYWHERE = ("--help", "-A, --app")
"""Options that are not told of each command."""


def reference() -> str:
    """The whole page."""
    context = click.Context(main, info_name="headgate")
    return "\n".join([HEAD, *_group(main, context)]).rstrip() + "\n"


def _group(group: click.Group, context: click.Context) -> Iterator[str]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        inner = click.Context(command, info_name=name, parent=context)
        if isinstance(command, click.Group):
            yield f"## {inner.command_path}\n\n{_text(command)}\n"
            yield from _group(command, inner)
        else:
            yield _command(command, inner)


def _command(command: click.Command, context: click.Context) -> str:
    level = "##" if context.parent is not None and context.parent.parent is None else "###"
    usage = " ".join(command.collect_usage_pieces(context))
    lines = [f"{level} {context.command_path}", "", f"`{context.command_path} {usage}`", "", _text(command), ""]
    options = [parameter for parameter in command.get_params(context) if isinstance(parameter, click.Option)]
    records = [record for option in options if (record := option.get_help_record(context)) is not None]
    rows = [record for record in records if not any(name in record[0] for name in EVERYWHERE)]
    if rows:
        lines += ["| option | |", "| --- | --- |"]
    lines += [f"| `{_cell(option)}` | {_cell(told)} |" for option, told in rows]
    return "\n".join([*lines, ""])


def _text(command: click.Command) -> str:
    """The help as paragraphs; what it wants kept as it is becomes a block."""
    parts: list[str] = []
    for part in (command.help or "").split("\n\n"):
        if "\b" in part:
            parts.append("```text\n" + cleandoc(part.replace("\b", "")) + "\n```")
        else:
            parts.append(" ".join(part.split()))
    return "\n\n".join(parts)


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(reference())
