"""The server as a process: started by its command line, used as the quickstart says, killed, and started again."""

from __future__ import annotations

import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from inferscale_sdk import InferScaleClient, InferScaleError
from inferscale_server.config import load_config
from inferscale_server.demo.server import free_port, serve_command, stop, wait_ready
from inferscale_server.demo.start_log import StartLog
from inferscale_server.facts import FactStore
from inferscale_server.models import prepare_generator
from inferscale_server.types import LOCAL_TENANT, Owner
from inferscale_server.verify import verify

pytestmark = pytest.mark.engine

ROOT = Path(__file__).parents[2]
PROMISED_GONE_S = 5.0
FAST_START = ("--dtype", "float32", "--max-model-len", "2048", "--enforce-eager")


@contextmanager
def started(folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A server that is ready, and its address; ended by its process id on leaving."""
    port, log = free_port(), folder / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            serve_command(port, folder / "data", FAST_START), stdout=output, stderr=output, start_new_session=True
        )
    url = f"http://127.0.0.1:{port}"
    try:
        with InferScaleClient(base_url=url) as client:
            wait_ready(client, process, StartLog(log, folder / "data"), lambda line: None)
        yield process, url
    finally:
        if process.poll() is None:
            stop(process)


def test_the_quickstart_runs_and_nothing_outlives_a_killed_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with started(tmp_path) as (process, url):
        monkeypatch.setenv("INFERSCALE_BASE_URL", url)
        for page in ("docs/quickstart.md",):
            exec(compile(python_of(ROOT / page), page, "exec"), {})
        assert "tokens came as KV" in capsys.readouterr().out
        run_commands_of(ROOT / "docs/quickstart.md", url)
        check_guards(url)
        with InferScaleClient(base_url=url) as client:
            (added,) = client.memories.add("kept", facts=["The acknowledged fact survives."]).results
        children = descendants(process.pid)
        assert any("EngineCore" in name for name in children.values()), children
        process.send_signal(signal.SIGKILL)
        process.wait()
        waited = seconds_until_gone(children)
        print(f"engine processes gone after {waited:.1f} s (promised: {PROMISED_GONE_S:.0f})")
        assert waited < 5 * PROMISED_GONE_S
    store = FactStore(tmp_path / "data" / "facts.sqlite3")
    try:
        assert [fact.id for fact in store.oldest(Owner(LOCAL_TENANT, "kept"), 10)] == [added.id]
    finally:
        store.close()


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_the_engine_loads_ends_everything_at_once(tmp_path: Path, number: signal.Signals) -> None:
    log = tmp_path / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            serve_command(free_port(), tmp_path / "data", FAST_START), stdout=output, stderr=output
        )
    try:
        while not any("EngineCore" in name for name in descendants(process.pid).values()):
            assert process.poll() is None, log.read_text()
            time.sleep(0.1)
        children = descendants(process.pid)
        process.send_signal(number)
        assert process.wait(timeout=PROMISED_GONE_S) == 128 + number
        assert seconds_until_gone(children) < PROMISED_GONE_S
    finally:
        process.kill()
        process.wait()
    assert all(" s  " in line for line in log.read_text().splitlines()), log.read_text()


@pytest.mark.long
def test_sigterm_ends_open_chats_with_words_and_keeps_what_was_acknowledged(tmp_path: Path) -> None:
    chat = {"messages": [{"role": "user", "content": "Tell a long story."}], "max_tokens": 1900, "ignore_eos": True}
    with started(tmp_path) as (process, url), ThreadPoolExecutor(1) as pool:
        whole = pool.submit(httpx.post, f"{url}/v1/chat/completions", json=chat, timeout=60)
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=chat | {"stream": True}, timeout=60) as stream:
            lines = stream.iter_lines()
            assert next(lines).startswith("data: {")
            with InferScaleClient(base_url=url) as client:
                (added,) = client.memories.add("kept", facts=["The acknowledged fact survives."]).results
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=PROMISED_GONE_S) == 0
            rest = [line for line in lines if line]
        assert '"code":"stopping"' in rest[-2] and rest[-1] == "data: [DONE]"
        assert (whole.result().status_code, whole.result().json()["error"]["code"]) == (503, "stopping")
    store = FactStore(tmp_path / "data" / "facts.sqlite3")
    try:
        assert [fact.id for fact in store.oldest(Owner(LOCAL_TENANT, "kept"), 10)] == [added.id]
    finally:
        store.close()
    told, engine_log = (tmp_path / "server.log").read_text(), (tmp_path / "data" / "logs" / "engine.log").read_text()
    assert all(" s  " in line for line in told.splitlines()), told
    assert "WARNING" in engine_log and "acknowledged" not in engine_log and "long story" not in engine_log


@pytest.mark.long
def test_a_server_whose_engine_dies_says_so_and_fails(tmp_path: Path) -> None:
    with started(tmp_path) as (process, _):
        (core,) = [pid for pid, name in descendants(process.pid).items() if "EngineCore" in name]
        os.kill(core, signal.SIGKILL)
        assert process.wait(timeout=60) == 2
    assert "inferscale: vLLM's engine died" in (tmp_path / "server.log").read_text().splitlines()[-1]


@pytest.mark.long
def test_an_engine_that_cannot_start_is_one_line_with_the_cause(tmp_path: Path) -> None:
    whole = prepare_generator(load_config({}).cache_path, lambda line: None)
    model = tmp_path / "model"
    shutil.copytree(whole, model, ignore=shutil.ignore_patterns("*.safetensors"))
    command = serve_command(free_port(), tmp_path / "data", FAST_START, str(model))
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2 and done.stdout == ""
    (last,) = [line for line in done.stderr.splitlines() if line.startswith("inferscale: ")]
    assert last == done.stderr.splitlines()[-1] and "vLLM's engine did not start: " in last and "weights" in last
    assert str(tmp_path / "data" / "logs" / "engine.log") in last


@pytest.mark.long
def test_R8_sigterm_ends_it_cleanly_and_a_restart_knows_everything(tmp_path: Path) -> None:
    question: dict[str, Any] = {"memory": {"mode": "kv"}, "max_tokens": 8, "temperature": 0}
    with started(tmp_path) as (process, url):
        with InferScaleClient(base_url=url) as client:
            client.memories.add("kept", facts=["Ada keeps bees on the roof of the library."])
            client.memories.wait_encoded("kept")
            before = client.chat("kept", "Where does Ada keep bees?", **question).text
        children = descendants(process.pid)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
        assert seconds_until_gone(children) < 5 * PROMISED_GONE_S
    with started(tmp_path) as (process, url):
        with InferScaleClient(base_url=url) as client:
            wait_encoded(client)
            reply, results = client.chat("kept", "Where does Ada keep bees?", **question), encoded(client)
        assert reply.mode == "kv" and [fact.text for fact in reply.facts] == [
            "Ada keeps bees on the roof of the library."
        ]
        assert reply.text == before and results.get("stored", 0) == 0 and results["loaded"] >= 2  # header and fact
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 0
    shutil.rmtree(tmp_path / "data" / "kv")
    with started(tmp_path) as (process, url), InferScaleClient(base_url=url) as client:
        wait_encoded(client)
        reply, results = client.chat("kept", "Where does Ada keep bees?", **question), encoded(client)
        assert (reply.mode, reply.text) == ("kv", before) and results["stored"] >= 2 and "loaded" not in results


KILLS, SEED, MOST_ADDS = 5, 20_261_130, 100


@pytest.mark.long
def test_R1_a_whole_server_that_is_killed_five_times_amid_chats_and_encoding_loses_nothing(tmp_path: Path) -> None:
    dice, acknowledged, gone_s = random.Random(SEED), list[str](), list[float]()
    for round_ in range(KILLS):
        with started(tmp_path) as (process, url), ThreadPoolExecutor(3) as pool:
            moment, children = time.monotonic() + dice.uniform(0.5, 6.0), descendants(process.pid)
            work = [pool.submit(add_until_gone, url, round_, thread) for thread in range(2)]
            work.append(pool.submit(chat_until_gone, url))
            time.sleep(moment - time.monotonic())
            process.send_signal(signal.SIGKILL)
            process.wait()
            gone_s.append(seconds_until_gone(children))
            for done in work[:2]:
                acknowledged += done.result()
        assert verify(tmp_path / "data" / "facts.sqlite3").broken == ()
    with started(tmp_path) as (_, url), InferScaleClient(base_url=url) as client:
        texts = [fact.text for fact in client.memories.list("kept")]
        wait_encoded(client)
        reply = client.chat("kept", "What was said?", memory={"mode": "kv"}, max_tokens=1)
    print(f"R1: {KILLS} kills of a whole server, {len(acknowledged)} acknowledged adds, gone in {max(gone_s):.1f} s")
    assert set(acknowledged) <= set(texts) and len(texts) == len(set(texts)) and len(acknowledged) >= KILLS
    assert max(gone_s) < 5 * PROMISED_GONE_S and reply.mode == "kv"


def add_until_gone(url: str, round_: int, thread: int) -> list[str]:
    """Facts that the server acknowledged before it was no more."""
    kept: list[str] = []
    with InferScaleClient(base_url=url, max_retries=0) as client:
        for number in range(MOST_ADDS):
            time.sleep(0.1)  # so that some are still to come when the server is killed, and few are to be encoded after
            text = f"In round {round_} thread {thread} said number {number}."
            try:
                client.memories.add("kept", facts=[text])
            except InferScaleError:
                return kept
            kept.append(text)
    return kept


def chat_until_gone(url: str) -> None:
    """Ask until the server is no more."""
    with InferScaleClient(base_url=url, max_retries=0) as client, suppress(InferScaleError):
        while True:
            client.chat("kept", "What was said?", max_tokens=4)


def run_commands_of(page: Path, url: str) -> None:
    """The commands from the page's last section, as written, against this server."""
    section = page.read_text("utf-8").partition("## From a terminal")[2]
    lines = re.findall(r"^\.venv/bin/inferscale (.+)$", section, re.MULTILINE)
    assert len(lines) == 4
    for line in lines:
        command = [sys.executable, "-m", "inferscale_server.cli", *shlex.split(line)]
        environ = {**os.environ, "INFERSCALE_BASE_URL": url}
        done = subprocess.run(command, env=environ, input="Where?\n", capture_output=True, text=True, timeout=120)
        assert done.returncode == 0 and done.stdout.strip(), (line, done.stdout, done.stderr)
        assert "Bruno" in done.stdout or not line.startswith("memories") or "add" in line, (line, done.stdout)


def encoded(client: InferScaleClient) -> dict[str, int]:
    """How many chunks were encoded (`stored`), loaded and so on since the start."""
    encoding = client.status().raw["encoding"]
    assert isinstance(encoding, dict)
    return encoding["results"]  # type: ignore[no-any-return]


def check_guards(url: str) -> None:
    """What must be refused on a whole server, vLLM's own routes included."""
    chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
    assert httpx.post(f"{url}/invocations", json=chat).status_code == 404
    for path, body in (("/v1/chat/completions", chat), ("/v1/completions", {"prompt": "hi", "max_tokens": 1})):
        for field in ("kv_transfer_params", "cache_salt", "vllm_xargs", "priority", "skip_reading_prefix_cache"):
            answer = httpx.post(url + path, json={**body, field: {}})
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, "refused_field"), (path, field)
            assert answer.headers["x-request-id"]


def python_of(page: Path) -> str:
    """All Python of a page, in order."""
    return "\n".join(re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL))


def descendants(pid: int) -> dict[int, str]:
    """All processes below `pid`, with their command lines."""
    found: dict[int, str] = {}
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            found[child] = Path(f"/proc/{child}/cmdline").read_text().replace("\0", " ")
            found |= descendants(child)
    return found


def seconds_until_gone(pids: dict[int, str]) -> float:
    """How long these processes still lived."""
    began = time.monotonic()
    while any(alive(pid) for pid in pids) and time.monotonic() - began < 10 * PROMISED_GONE_S:
        time.sleep(0.05)
    return time.monotonic() - began


def alive(pid: int) -> bool:
    """Is it running, and not only a zombie that nobody has reaped?"""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_encoded(client: InferScaleClient) -> None:
    """Until all facts have KV."""
    idle = 0
    while idle < 3:
        encoding = client.status().raw["encoding"]
        assert isinstance(encoding, dict)
        idle = idle + 1 if encoding["queued"] == encoding["running"] == 0 else 0
        time.sleep(0.1)
