"""The command line. One public door: `main`."""

from inferscale_server.cli.app import main

__all__ = ["main"]
