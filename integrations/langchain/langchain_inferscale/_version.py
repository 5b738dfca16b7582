"""The version, the same as the SDK's: both come in one distribution."""

from __future__ import annotations

from inferscale_sdk import __version__

__all__ = ["__version__"]
