"""Does what the server is going to hold fit into this machine's memory? A CPU alone: on a GPU vLLM measures itself.

Reads what Linux says is available, to this container if it is in one; refuses to know what is in use for what.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from inferscale_server.config import ServerConfig
from inferscale_server.errors import ConfigError

GIB = 1 << 30
PROCESSES_GIB = 0.5
"""The least that three Python processes with torch take; usually it is three times as much."""
CGROUP = Path("/sys/fs/cgroup")
MEMINFO = Path("/proc/meminfo")


def needed_gib(config: ServerConfig, environ: Mapping[str, str], weights_bytes: int) -> float:
    """GiB that the settings hold ready: vLLM's blocks, the slab, host rows, the weights, and the processes."""
    try:
        blocks = float(environ.get("VLLM_CPU_KVCACHE_SPACE", "4"))
    except ValueError:
        blocks = 0.0  # vLLM says what is wrong with it
    return blocks + config.kv_device_gib + config.kv_host_gib + weights_bytes / GIB + PROCESSES_GIB


def available_gib(meminfo: Path = MEMINFO, cgroup: Path = CGROUP) -> float | None:
    """GiB that new processes can have; None where nothing says it."""
    free = _available_to_machine(meminfo)
    left = _left_in_container(cgroup)
    known = [one for one in (free, left) if one is not None]
    return min(known) / GIB if known else None


def check_memory(config: ServerConfig, environ: Mapping[str, str], weights_bytes: int, available: float | None) -> None:
    """Raises ConfigError, with what to set, when the engine would be killed for want of memory after a minute."""
    needed = needed_gib(config, environ, weights_bytes)
    if available is None or needed <= available:
        return
    raise ConfigError(
        f"the server needs at least {needed:.1f} GiB of memory and {available:.1f} GiB are free: set a smaller "
        "VLLM_CPU_KVCACHE_SPACE or kv_device_gib"
    )


def weights_of(model: Path) -> int:
    """Bytes of a folder's weight files."""
    return sum(file.stat().st_size for kind in ("*.safetensors", "*.bin") for file in model.glob(kind))


def _available_to_machine(meminfo: Path) -> int | None:
    try:
        lines = meminfo.read_text().splitlines()
    except OSError:
        return None
    found = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    return found[0] if found else None


def _left_in_container(cgroup: Path) -> int | None:
    """What is left below the limit; file pages that can be dropped count as left."""
    try:
        limit, used = ((cgroup / name).read_text().strip() for name in ("memory.max", "memory.current"))
        stat = (cgroup / "memory.stat").read_text().splitlines()
        inactive = [line.split()[1] for line in stat if line.startswith("inactive_file ")]
        return int(limit) - int(used) + sum(map(int, inactive[:1]))
    except (OSError, ValueError):  # no container, or no limit ("max")
        return None
