"""`make setup`'s script, with a uv, a Python and a compiler that only take notes: twice, half done, and in vain."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = (
    "bash",
    "cat",
    "cksum",
    "dirname",
    "grep",
    "head",
    "tail",
    "sed",
    "rm",
    "mkdir",
    "mktemp",
    "tee",
    "sleep",
    "chmod",
)

PYTHON = """#!/bin/bash
if [[ "$1 $2" == "-m inferscale_server.models" ]]; then echo models >>"{notes}"; exit 0; fi
exec {real} "$@"
"""
UV = """#!/bin/bash
case "$1" in
    --version) echo "uv 0" ;;
    venv) mkdir -p "$5/bin"; cat "{python}" >"$5/bin/python"; chmod +x "$5/bin/python"
          echo "VIRTUAL_ENV=$5" >"$5/bin/activate"; echo venv >>"{notes}" ;;
    pip) echo install >>"{notes}"; if [[ -e "{fault}" ]]; then cat "{fault}" >&2; exit 1; fi ;;
esac
"""


@dataclass(frozen=True)
class Clone:
    """A copy of the script beside what it reads, and a PATH with stand-ins alone."""

    folder: Path

    @property
    def notes(self) -> list[str]:
        """What the stand-ins were asked for."""
        file = self.folder / "notes"
        return file.read_text().split() if file.exists() else []

    def run(self) -> subprocess.CompletedProcess[str]:
        """Run it once."""
        environment = {"PATH": str(self.folder / "bin"), "HOME": str(self.folder)}
        script = self.folder / "clone" / "scripts" / "setup.sh"
        return subprocess.run([script], env=environment, capture_output=True, text=True, timeout=60)


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    """Nothing is set up yet."""
    here, tools = tmp_path / "clone", tmp_path / "bin"
    (here / "scripts").mkdir(parents=True)
    (here / "requirements").mkdir()
    tools.mkdir()
    shutil.copy(ROOT / "scripts" / "setup.sh", here / "scripts")
    for name in ("pyproject.toml", "requirements/constraints-cpu.txt"):
        shutil.copy(ROOT / name, here / name)
    for tool in TOOLS:
        found = shutil.which(tool)
        assert found is not None, tool
        (tools / tool).symlink_to(found)
    named = {"notes": tmp_path / "notes", "python": tools / "python3.11", "fault": tmp_path / "fault"}
    for name, text in {"python3.11": PYTHON.format(real=sys.executable, **named), "uv": UV.format(**named)}.items():
        (tools / name).write_text(text)
    (tools / "g++").write_text("#!/bin/bash\n")
    for name in ("python3.11", "uv", "g++"):
        (tools / name).chmod(0o755)
    return Clone(tmp_path)


def test_it_works_twice_in_a_row_and_installs_once(clone: Clone) -> None:
    assert clone.run().returncode == 0 and clone.notes == ["venv", "install", "models"]
    assert clone.run().returncode == 0 and clone.notes[3:] == ["models"]
    (clone.folder / "clone" / "requirements" / "constraints-cpu.txt").write_text("other==1\n")
    assert clone.run().returncode == 0 and clone.notes[4:] == ["install", "models"]


def test_a_half_made_environment_is_made_anew(clone: Clone) -> None:
    half = clone.folder / "clone" / ".venv" / "bin"
    half.mkdir(parents=True)
    (half / "activate").write_text("elsewhere")
    assert clone.run().returncode == 0 and clone.notes == ["venv", "install", "models"]


def test_a_missing_wheel_is_named_in_the_last_line_and_the_next_try_resumes(clone: Clone) -> None:
    fault = clone.folder / "fault"
    fault.write_text("  × No solution found:\n  ╰─▶ Because wheel-x was not found and you require wheel-x, it fails.\n")
    failed = clone.run()
    assert failed.returncode == 1
    assert failed.stderr.splitlines()[-1] == (
        "setup: the packages could not be installed: Because wheel-x was not found and you require wheel-x, it fails.; "
        "run it again to resume"
    )
    fault.unlink()
    assert clone.run().returncode == 0 and clone.notes == ["venv", "install", "install", "models"]


@pytest.mark.parametrize(
    ("tool", "sentence"),
    [("python3.11", "Python 3.11, 3.12 or 3.13 is needed and none is on PATH"), ("g++", "g++ is missing")],
)
def test_what_is_missing_is_said_in_one_line(clone: Clone, tool: str, sentence: str) -> None:
    (clone.folder / "bin" / tool).unlink()
    failed = clone.run()
    (line,) = failed.stderr.splitlines()
    assert failed.returncode == 1 and line.startswith(f"setup: {sentence}") and clone.notes == []
