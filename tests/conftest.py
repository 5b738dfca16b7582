"""For all tests: property tests have no deadline on a busy machine, and what the server says can be heard.

mem0 reads its environment when it is imported: nothing is sent anywhere, and nothing is written into a home folder.
"""

from __future__ import annotations

import os
from tempfile import mkdtemp

import pytest
from hypothesis import settings

from inferscale_server.engine.log_file import keep_heard

os.environ["MEM0_TELEMETRY"] = "false"
os.environ["MEM0_DIR"] = mkdtemp(prefix="mem0-")

settings.register_profile("inferscale", deadline=None)
settings.load_profile("inferscale")


@pytest.fixture(autouse=True)
def heard() -> None:
    """Loggers as at the start: an engine that ran in this process before leaves some of them silent."""
    keep_heard()
