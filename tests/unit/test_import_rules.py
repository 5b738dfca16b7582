"""Who may import whom: the engine's processes stay free of web and database, and vLLM stays in one package."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import inferscale_server

ROOT = Path(inferscale_server.__file__).parent


def modules() -> Iterator[tuple[str, Path]]:
    for path in ROOT.rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        yield ".".join(("inferscale_server", *(part for part in parts if part != "__init__"))), path


SOURCES = dict(modules())


def imported_by(path: Path) -> set[str]:
    """Full names of everything that a file imports, wherever in the file it stands."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def closure(start: str) -> set[str]:
    """All that a module imports, directly or through modules of ours."""
    seen, waiting = set(), [start]
    while waiting:
        for name in imported_by(SOURCES[waiting.pop()]) - seen:
            seen.add(name)
            if name in SOURCES:
                waiting.append(name)
    return seen


def test_what_runs_in_the_engines_processes_imports_no_web_and_no_database() -> None:
    reached = closure("inferscale_server.engine.connector") | closure("inferscale_server.engine.extension")
    assert "inferscale_server.engine.slab" in reached and "vllm.config" in reached
    forbidden = ("fastapi", "starlette", "uvicorn", "sqlite3", "pydantic", "inferscale_server.edge")
    assert not [name for name in reached if name.startswith(forbidden)]


def test_nothing_outside_the_engine_package_imports_vllm() -> None:
    engine = ROOT / "engine"
    outside = [path for path in SOURCES.values() if engine not in path.parents]
    assert len(outside) > 20
    assert not [path.name for path in outside if any(name.split(".")[0] == "vllm" for name in imported_by(path))]


def test_the_engines_arithmetic_loads_without_vllm_web_and_database() -> None:
    names = ("scheduler_half", "worker_half", "slab", "capture", "options", "lifeline")
    code = (
        "import sys\n"
        + "".join(f"import inferscale_server.engine.{name}\n" for name in names)
        + "print([name for name in ('vllm', 'fastapi', 'sqlite3', 'transformers') if name in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "[]"
