"""Commands whose mistakes show their own usage.

Typer's parser names no command when an option lacks its value, so that what is printed says nothing of what to write.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand

F = TypeVar("F", bound=Callable[..., Any])


class Command(TyperCommand):
    """A command that adds itself to an error of its parser."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As in typer. Raises its errors, with the command that was called."""
        try:
            return super().parse_args(ctx, args)
        except Exception as error:  # typer brings click with it or not, by version: the class has no one public name
            if getattr(error, "ctx", self) is None:
                error.ctx = ctx  # type: ignore[attr-defined]
            raise


class CommandLine(typer.Typer):
    """A Typer whose commands are `Command`s."""

    def command(
        self, name: str | None = None, *, cls: type[TyperCommand] | None = None, **options: Any
    ) -> Callable[[F], F]:
        """As in typer."""
        return super().command(name, cls=cls or Command, **options)
