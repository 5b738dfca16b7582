"""openai 2 and LiteLLM, in an environment of their own: they cannot be installed beside openai 3."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from inferscale_sdk import InferScaleClient
from tests.cli.memory_server import memory_server
from tests.openai.chat_app import MODEL, ChatApp

SCRIPT = Path(__file__).with_name("other_clients.py")
PACKAGES = ("openai>=2,<3", "litellm")


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


@pytest.mark.long
def test_openai_2_and_litellm_need_only_the_address_and_the_user(tmp_path: Path) -> None:
    python = interpreter(tmp_path / "venv")
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    with memory_server(tmp_path, ChatApp().over) as url:
        with InferScaleClient(base_url=url) as client:
            client.memories.add("alice", facts=["My dog is called Bruno."])
        ran = subprocess.run(
            [python, str(SCRIPT), url, MODEL],
            env={**environment, "LITELLM_LOCAL_MODEL_COST_MAP": "True"},  # else it asks the internet for prices
            capture_output=True,
            text=True,
            timeout=300,
        )
    assert ran.returncode == 0, ran.stderr[-2000:]
    told = json.loads(ran.stdout.splitlines()[-1])
    assert told.pop("version").startswith("2.")
    bruno = "My dog is called Bruno."
    assert told == {
        **dict.fromkeys(("whole", "streamed", "litellm", "litellm_streamed", "litellm_extended"), bruno),
        "mode": "text",
        "usage": 5,
        "refused": "invalid_id",
    }
