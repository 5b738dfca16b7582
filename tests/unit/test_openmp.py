"""Which OpenMP runtime the engine's processes load."""

from __future__ import annotations

from pathlib import Path

import pytest

from inferscale_server.engine import openmp
from inferscale_server.engine.openmp import find_library, preload_openmp


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    path = tmp_path / "libiomp5.so"
    monkeypatch.setattr(openmp, "find_library", lambda: path)
    return path


def test_the_runtime_is_preloaded_before_what_is_preloaded_already(library: Path) -> None:
    alone: dict[str, str] = {}
    preload_openmp(alone)
    beside = {"LD_PRELOAD": "/usr/lib/libtcmalloc.so.4"}
    preload_openmp(beside)
    assert alone == {"LD_PRELOAD": str(library)}
    assert beside == {"LD_PRELOAD": f"{library}:/usr/lib/libtcmalloc.so.4"}


def test_a_runtime_that_the_operator_chose_stays(library: Path) -> None:
    environ = {"LD_PRELOAD": "/usr/lib/libgomp.so.1"}
    preload_openmp(environ)
    assert environ == {"LD_PRELOAD": "/usr/lib/libgomp.so.1"}


def test_a_machine_without_the_package_preloads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openmp, "PACKAGE", "a-package-that-is-not-installed")
    environ: dict[str, str] = {}
    preload_openmp(environ)
    assert environ == {}


def test_what_is_found_is_a_file_that_can_be_loaded() -> None:
    found = find_library()
    assert found is None or (found.is_file() and found.name == "libiomp5.so")
