"""What the package exports, and what importing it costs."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import inferscale_sdk

FOLDER = Path(inferscale_sdk.__file__).parent
HEAVY = ("torch", "vllm", "langchain", "langchain_core", "llama_index", "numpy", "inferscale_server")


def modules_after(code: str) -> set[str]:
    ask = f"{code}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    answer = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    return set(json.loads(answer.stdout))


def test_every_exported_name_can_be_had() -> None:
    for name in inferscale_sdk.__all__:
        assert getattr(inferscale_sdk, name) is not None


def test_the_exports_are_the_type_checkers_exports() -> None:
    tree = ast.parse((FOLDER / "__init__.py").read_text())
    [block] = [node for node in tree.body if isinstance(node, ast.If)]
    imported = {alias.name for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assigned = {ast.unparse(node.targets[0]) for node in block.body if isinstance(node, ast.Assign)}
    assert imported | assigned | {"__version__"} == set(inferscale_sdk.__all__) == set(dir(inferscale_sdk))


def test_the_short_names_are_the_same_classes() -> None:
    assert inferscale_sdk.InferScale is inferscale_sdk.InferScaleClient
    assert inferscale_sdk.AsyncInferScale is inferscale_sdk.AsyncInferScaleClient


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="MemoryManager"):
        _ = inferscale_sdk.MemoryManager


def test_a_plain_import_loads_neither_the_http_stack_nor_pydantic() -> None:
    assert not {"httpx", "pydantic"} & modules_after("import inferscale_sdk")


def test_using_everything_loads_nothing_heavy() -> None:
    loaded = modules_after("from inferscale_sdk import *\nInferScaleClient().close()")
    assert "inferscale_sdk._client" in loaded
    assert not loaded & set(HEAVY)


def test_only_the_transport_imports_httpx() -> None:
    users = [path.name for path in FOLDER.glob("*.py") if "import httpx" in path.read_text()]
    assert users == ["_transport.py"]


def test_the_package_is_typed_and_carries_the_projects_version() -> None:
    assert (FOLDER / "py.typed").exists()
    assert f'version = "{inferscale_sdk.__version__}"' in (FOLDER.parent / "pyproject.toml").read_text()
