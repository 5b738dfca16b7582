"""How the client commands reach a server: the options that they share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from inferscale_sdk import InferScaleClient


def checked_id(written: str | None) -> str | None:
    """A user or fact id as it was typed. Raises typer.BadParameter for one that no server takes."""
    if written is not None and (not written or written != written.strip()):
        raise typer.BadParameter("an id must not be empty, nor begin or end with a blank")
    return written


def checked_url(written: str | None) -> str | None:
    """A server's address as it was typed. Raises typer.BadParameter for one that is none."""
    if written is not None:
        connect(written).close()
    return written


UserOption = Annotated[str, typer.Option("--user", "-u", help="Whose memory.", show_default=False, callback=checked_id)]
AgentOption = Annotated[str | None, typer.Option("--agent-id", help="Only facts of this agent.", callback=checked_id)]
RunOption = Annotated[str | None, typer.Option("--run-id", help="Only facts of this run.", callback=checked_id)]
UrlOption = Annotated[
    str | None,
    typer.Option("--url", "--base-url", help="Server, default INFERSCALE_BASE_URL or http://127.0.0.1:8000."),
]
KeyOption = Annotated[
    str | None,
    typer.Option("--api-key", help="API key, better given as INFERSCALE_API_KEY: others see command lines."),
]


def connect(url: str | None, api_key: str | None = None) -> InferScaleClient:
    """A client for `url`; None for either: the environment, then the default.

    Raises typer.BadParameter for an address or a key that is none.
    """
    from inferscale_sdk import InferScaleClient

    try:
        return InferScaleClient(base_url=url, api_key=api_key)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
