"""A server that does not fit into memory says so before it loads, and what to set."""

from __future__ import annotations

from pathlib import Path

import pytest

from inferscale_server.config import ServerConfig
from inferscale_server.engine.host_memory import GIB, available_gib, check_memory, needed_gib, weights_of
from inferscale_server.errors import ConfigError

CONFIG = ServerConfig(kv_device_gib=1.0, kv_host_gib=0.5)


def test_what_the_settings_hold_is_needed() -> None:
    assert needed_gib(CONFIG, {}, 2 * GIB) == pytest.approx(4 + 1 + 0.5 + 2 + 0.5)
    assert needed_gib(CONFIG, {"VLLM_CPU_KVCACHE_SPACE": "1"}, 0) == pytest.approx(3.0)


def test_too_little_memory_is_one_line_that_says_what_to_set() -> None:
    with pytest.raises(ConfigError, match=r"needs at least 6\.0 GiB of memory and 3\.5 GiB are free: .*kv_device_gib"):
        check_memory(CONFIG, {}, 0, 3.5)
    check_memory(CONFIG, {}, 0, 6.0)
    check_memory(CONFIG, {}, 0, None)


def test_a_containers_limit_counts_where_it_is_tighter(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 9 kB\nMemAvailable:   8388608 kB\n")
    assert available_gib(meminfo, tmp_path) == 8.0
    for name, text in {"memory.max": 4 * GIB, "memory.current": 3 * GIB, "memory.stat": f"inactive_file {GIB}"}.items():
        (tmp_path / name).write_text(f"{text}\n")
    assert available_gib(meminfo, tmp_path) == 2.0
    (tmp_path / "memory.max").write_text("max\n")
    assert available_gib(meminfo, tmp_path) == 8.0
    assert available_gib(tmp_path / "none", tmp_path / "none") is None


def test_weights_are_counted_by_their_files(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"x" * 10)
    (tmp_path / "tokenizer.json").write_bytes(b"x" * 99)
    assert weights_of(tmp_path) == 10
