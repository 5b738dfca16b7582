"""openai 2, LiteLLM and LangChain's OpenAI model, in an environment of their own: they do not go with openai 3."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from inferscale_sdk import InferScaleClient
from tests.cli.memory_server import memory_server
from tests.openai.chat_app import MODEL, ChatApp

SCRIPT = Path(__file__).with_name("other_clients.py")
DOCS = Path(__file__).parents[2] / "docs"
PACKAGES = ("openai>=2,<3", "litellm", "langchain", "langchain-openai")
BRUNO = "My dog is called Bruno."
Run = Callable[..., str]


def interpreter(folder: Path) -> str:
    """A Python with the older clients, made in `folder`."""
    uv, python = shutil.which("uv"), str(folder / "bin" / "python")
    if uv is not None:
        subprocess.run([uv, "venv", "-q", "-p", sys.executable, str(folder)], check=True)
        subprocess.run([uv, "pip", "install", "-q", "-p", python, *PACKAGES], check=True)
    else:
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *PACKAGES], check=True)
    return python


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    return interpreter(tmp_path_factory.mktemp("other") / "venv")


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """A server whose Alice has a dog."""
    with memory_server(tmp_path, ChatApp().over) as address:
        with InferScaleClient(base_url=address) as client:
            client.memories.add("alice", facts=[BRUNO])
        yield address


@pytest.fixture
def run(python: str) -> Run:
    """What the other interpreter prints."""

    def run(*argv: str) -> str:
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        environment["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it asks the internet for prices
        ran = subprocess.run([python, *argv], env=environment, capture_output=True, text=True, timeout=300)
        assert ran.returncode == 0, ran.stderr[-2000:]
        return ran.stdout

    return run


@pytest.mark.long
def test_openai_2_and_litellm_need_only_the_address_and_the_user(url: str, run: Run) -> None:
    told = json.loads(run(str(SCRIPT), url, MODEL).splitlines()[-1])
    assert told.pop("version").startswith("2.")
    assert told == {
        **dict.fromkeys(("whole", "streamed", "litellm", "litellm_streamed", "litellm_extended"), BRUNO),
        "mode": "text",
        "usage": 5,
        "refused": "invalid_id",
    }


@pytest.mark.long
@pytest.mark.parametrize("page", ["openai.md", "langchain.md"])
def test_what_the_pages_show_of_other_clients_runs_as_written(url: str, run: Run, page: str) -> None:
    [code] = re.findall(r"```py\n(.*?)```", (DOCS / page).read_text("utf-8"), re.DOTALL)
    assert "http://127.0.0.1:8000" in code
    assert run("-c", code.replace("http://127.0.0.1:8000", url)).splitlines()[-1] == BRUNO
