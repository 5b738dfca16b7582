"""The gate's verdict: what was measured, what it means for KV mode, and the file that makes a restart quick.

Only green verdicts are kept: what made a gate red may be mended by the next start.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from inferscale_server.engine.probe import ProbeResult
from inferscale_server.engine.probe_quality import Quality

GATE_VERSION = 2
"""Raise when the probes change: older verdicts are then measured again."""


class Verdict(BaseModel):
    """What the gate found. `recalled`: from an earlier start of the same engine, all but the first probe."""

    model_config = ConfigDict(frozen=True)

    probes: tuple[ProbeResult, ...]
    quality: Quality | None = None
    recalled: bool = False

    @property
    def reasons(self) -> list[str]:
        """Why KV mode must be off; none means that the gate is green."""
        found = [*(probe.reason for probe in self.probes), None if self.quality is None else self.quality.reason]
        return [f"the start-up gate is red: {reason}" for reason in found if reason is not None]

    def shown(self) -> dict[str, object]:
        """For the status route; JSON has no infinity, so what was not measured is null."""
        probes = [
            {**asdict(probe), "measured": probe.measured if math.isfinite(probe.measured) else None}
            for probe in self.probes
        ]
        return {"passed": not self.reasons, "recalled": self.recalled, "probes": probes, "quality": self._quality()}

    def _quality(self) -> dict[str, object] | None:
        return None if self.quality is None else asdict(self.quality)


class VerdictFolder:
    """Verdicts by what they depend on, in a folder that may vanish at any time."""

    def __init__(self, folder: Path, traits: Mapping[str, object]) -> None:
        """`traits`: all that the gate's outcome depends on: fingerprint, backend, versions, device, lengths."""
        text = json.dumps({"gate": GATE_VERSION, **traits}, sort_keys=True, default=str)
        self._path = folder / f"{hashlib.sha256(text.encode()).hexdigest()}.json"

    def recall(self) -> Verdict | None:
        """The verdict of an earlier start, if it is there and green."""
        try:
            verdict = Verdict.model_validate_json(self._path.read_bytes())
        except (OSError, ValidationError):
            return None
        return None if verdict.reasons else verdict

    def keep(self, verdict: Verdict) -> None:
        """Write a green verdict; a folder that cannot be written costs only time at the next start."""
        if verdict.reasons:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self._path.parent, suffix=".tmp", delete=False) as file:
                file.write(verdict.model_dump_json().encode())
            os.replace(file.name, self._path)
        except OSError:
            return
