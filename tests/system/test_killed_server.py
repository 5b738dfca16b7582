"""R1 on the whole server but its engine: HTTP, guard, routes, memory service and store, killed at random points."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import httpx
import pytest

from inferscale_sdk import APIConnectionError, InferScaleClient
from inferscale_server.verify import verify

SEED, KILLS, MOST_ADDS = 20_260_701, 5, 12

SERVER = """
import sys
from pathlib import Path
from tests.cli.memory_server import memory_server

with memory_server(Path(sys.argv[1])) as url:
    print(url, flush=True)
    sys.stdin.read()
"""


@contextmanager
def served(folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server in a process of its own, and its address; killed at the end."""
    command = [sys.executable, "-c", SERVER, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def body_of(round_: int, number: int) -> dict[str, object]:
    return {"user_id": "alice", "facts": [f"round {round_} fact {number}"]}


def add(client: httpx.Client, round_: int, number: int) -> str:
    """Store one fact; returns its id."""
    key = {"Idempotency-Key": f"r{round_}-{number}"}
    answer = client.post("/v1/memories", json=body_of(round_, number), headers=key)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["results"][0]["id"])


def add_until_killed(folder: Path, round_: int, adds: int) -> list[str]:
    """The ids that were acknowledged before the server was killed, with one more add under way."""
    with served(folder) as (process, url), httpx.Client(base_url=url) as client:
        acknowledged = [add(client, round_, number) for number in range(adds)]
        late: list[str] = []

        def one_more() -> None:
            try:
                late.append(add(client, round_, adds))
            except httpx.HTTPError:
                return

        thread = Thread(target=one_more)
        thread.start()
        process.kill()
        thread.join()
    return acknowledged + late


def test_R1_a_whole_server_that_is_killed_loses_nothing_that_it_acknowledged(tmp_path: Path) -> None:
    points, acknowledged = random.Random(SEED), dict[int, list[str]]()
    for round_ in range(KILLS):
        acknowledged[round_] = add_until_killed(tmp_path, round_, points.randint(1, MOST_ADDS))
        assert verify(tmp_path / "facts.sqlite3").broken == ()
    with served(tmp_path) as (_, url), httpx.Client(base_url=url) as client:
        for round_, ids in acknowledged.items():
            again = [add(client, round_, number) for number in range(len(ids) + 1)]  # with the keys of the first time
            assert again[: len(ids)] == ids
        with InferScaleClient(base_url=url, max_retries=0) as reader:
            texts = [fact.text for fact in reader.memories.list("alice")]
    assert len(texts) == len(set(texts)) >= sum(map(len, acknowledged.values())) + 1
    print(f"R1: {KILLS} kills of a server, {sum(map(len, acknowledged.values()))} acknowledged adds: 0 lost, 0 doubled")


def test_a_killed_server_is_a_connection_error_for_its_clients(tmp_path: Path) -> None:
    with served(tmp_path) as (process, url), InferScaleClient(base_url=url, max_retries=0) as client:
        client.memories.add("alice", facts=["one"])
        process.kill()
        process.wait()
        with pytest.raises(APIConnectionError, match=r"127\.0\.0\.1"):
            client.memories.add("alice", facts=["two"])
