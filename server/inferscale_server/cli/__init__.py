"""The command line. One public door: `main`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command and exit. A plain install has the client alone, and says what the command line needs."""
    try:
        from inferscale_server.cli.app import main as run
    except ModuleNotFoundError as error:
        print(f"inferscale: {error.name} is missing: install inferscale-sdk[server-cpu] or [server]", file=sys.stderr)
        sys.exit(2)
    run(argv)
