"""The command line. One public door: `main`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec

__all__ = ["main"]

CLIENT_COMMANDS = ("chat", "keys", "memories")
"""What needs a terminal's packages and no model."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command and exit. A smaller install than a command needs is told which extra is enough for it."""
    given = list(sys.argv[1:] if argv is None else argv)
    try:
        from inferscale_server.cli.app import main as run

        run(given)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if not package or find_spec(package) is not None:  # a module of ours, or one of another version: a fault
            raise
        print(f"inferscale: {package} is missing: install {smallest_extra(given)}", file=sys.stderr)
        sys.exit(2)


def smallest_extra(argv: Sequence[str]) -> str:
    """What this command line needs at least, in words."""
    command = argv[0] if argv else ""
    if command == "mcp":
        return "inferscale-sdk[mcp]"
    if command in CLIENT_COMMANDS or not command or command.startswith("-"):
        return "inferscale-sdk[cli]"
    return "inferscale-sdk[server-cpu] or [server]"
