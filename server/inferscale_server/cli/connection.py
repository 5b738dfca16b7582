"""How the client commands reach a server: two options that they share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from inferscale_sdk import InferScaleClient

UserOption = Annotated[str, typer.Option("--user", "-u", help="Whose memory.", show_default=False)]
UrlOption = Annotated[
    str | None, typer.Option("--url", help="Server, default INFERSCALE_BASE_URL or http://127.0.0.1:8000.")
]


def connect(url: str | None) -> InferScaleClient:
    """A client for `url` (None: environment, then the default); the API key comes from INFERSCALE_API_KEY.

    Raises typer.BadParameter for an address that is none.
    """
    from inferscale_sdk import InferScaleClient

    try:
        return InferScaleClient(base_url=url)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
