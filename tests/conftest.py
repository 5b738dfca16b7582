"""For all tests: property tests have no deadline, since a busy machine is no fault of the code."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("inferscale", deadline=None)
settings.load_profile("inferscale")
