"""What the command line says, and can do, where only some of the extras are installed."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
SERVER = ("fastapi", "starlette", "uvicorn", "numpy", "torch", "vllm", "faiss", "matplotlib", "sentence_transformers")
TERMINAL = ("typer", "rich")

WITHOUT = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name in {absent!r} else found(name, package)
sys.meta_path.insert(0, Absent())
"""


def without(absent: tuple[str, ...], code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a Python that has none of these packages."""
    whole = WITHOUT.format(absent=absent) + code
    return subprocess.run([sys.executable, "-c", whole], capture_output=True, text=True, check=False)


def command(absent: tuple[str, ...], *argv: str) -> subprocess.CompletedProcess[str]:
    return without(absent, f"from inferscale_server.cli import main; main({list(argv)!r})")


@pytest.mark.parametrize(
    ("argv", "extra"),
    [
        (("memories", "list"), "inferscale-sdk[cli]"),
        (("--help",), "inferscale-sdk[cli]"),
        (("mcp", "--user", "alice"), "inferscale-sdk[mcp]"),
        (("serve",), "inferscale-sdk[server-cpu] or [server]"),
    ],
)
def test_a_plain_install_names_the_smallest_extra_that_is_enough(argv: tuple[str, ...], extra: str) -> None:
    done = command(TERMINAL + SERVER, *argv)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"inferscale: typer is missing: install {extra}\n"


def test_the_cli_extra_is_enough_for_the_client_commands(tmp_path: Path) -> None:
    told = command(SERVER, "memories", "get", "f1", "--user", "alice", "--url", "http://127.0.0.1:9")
    assert (told.returncode, told.stderr.partition(" to ")[0]) == (2, "inferscale: connection failed")
    listed = command(SERVER, "keys", "list", str(tmp_path / "keys.json"))
    assert "is missing" not in listed.stderr and "Traceback" not in listed.stderr


def test_what_a_server_command_lacks_is_one_line_too() -> None:
    done = command(SERVER, "serve", "--data-dir", "/nowhere/at/all")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1


def test_the_extras_bring_what_is_said() -> None:
    extras = tomllib.loads(PYPROJECT.read_text("utf-8"))["project"]["optional-dependencies"]
    assert {name.partition(">")[0] for name in extras["cli"]} == set(TERMINAL)
    assert "inferscale-sdk[cli]" in extras["mcp"] and "inferscale-sdk[cli]" in extras["server-base"]


@pytest.mark.parametrize(
    ("absent", "statement", "words"),
    [
        ("mem0", "import mem0_inferscale", "'inferscale-sdk[mem0]'"),
        ("langchain_core", "from langchain_inferscale import ChatInferScale", "'inferscale-sdk[langchain]'"),
        ("langgraph", "from langchain_inferscale import InferScaleStore", "pip install langgraph"),
    ],
)
def test_an_integration_without_its_extra_names_it(absent: str, statement: str, words: str) -> None:
    last = without((absent,), statement).stderr.splitlines()[-1]
    assert last.startswith("ModuleNotFoundError: ") and words in last


@pytest.mark.parametrize("kind", ["llms", "memory"])
def test_llama_index_without_its_core_names_the_extra(kind: str) -> None:
    absent = 'import sys; sys.modules["llama_index.core"] = None\n'
    code = f"{absent}import llama_index.{kind}.inferscale"
    last = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    ).stderr.splitlines()[-1]
    assert last.startswith("ModuleNotFoundError: ") and "'inferscale-sdk[llamaindex]'" in last
