"""Messages of a conversation, read from a file or stdin: one JSON array of them, or one message a line."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from inferscale_server.cli.transfer import opened_source

MessagesOption = Annotated[
    str | None,
    typer.Option(
        "--messages",
        metavar="FILE",
        help="Instead of facts: a conversation, as a JSON array of messages or one a line; - reads stdin.",
    ),
]
InferOption = Annotated[
    bool | None,
    typer.Option(
        "--infer/--no-infer",
        show_default=False,
        help="With --messages: a model makes facts of them (default), or each is kept as it is.",
    ),
]


def read_messages(file: str) -> list[dict[str, object]]:
    """The messages of `file`, unchecked but for being JSON objects. Raises FileFault, typer.BadParameter."""
    with opened_source(file) as source:
        raw = source.read()
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise typer.BadParameter(f"--messages: {file}: not UTF-8 (byte {error.start})") from error
    found = _parsed(text)
    if not found:
        raise typer.BadParameter("--messages: no message in it")
    return found


def _parsed(text: str) -> list[dict[str, object]]:
    """An array, one object, or an object a line: whatever the text is whole, or else line by line."""
    try:
        whole = json.loads(text)
    except json.JSONDecodeError:
        lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
        return [_message(_line(number, line), f"line {number}") for number, line in lines]
    items = whole if isinstance(whole, list) else [whole]
    return [_message(item, f"message {number}") for number, item in enumerate(items, 1)]


def _line(number: int, line: str) -> object:
    try:
        parsed: object = json.loads(line)
    except json.JSONDecodeError as error:
        raise typer.BadParameter(f"--messages: line {number}: not JSON: {error.msg}") from error
    return parsed


def _message(item: object, where: str) -> dict[str, object]:
    if not isinstance(item, dict):
        raise typer.BadParameter(f'--messages: {where}: must be an object, as {{"role": "user", "content": "..."}}')
    return item
