"""bench/gpu_kernel.py as far as a machine without a GPU can run it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "bench" / "gpu_kernel.py"


def test_a_small_shape_in_the_interpreter_equals_its_twin() -> None:
    pytest.importorskip("triton")
    done = subprocess.run([sys.executable, str(SCRIPT), "--tiny"], capture_output=True, text=True)
    report = json.loads(done.stdout)
    assert done.returncode == 0 and report["equal"] and 0 < report["largest_difference"] < 0.05
    assert "kernel_ms" not in report
