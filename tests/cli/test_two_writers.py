"""Two programs that write at once through one server."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from inferscale_sdk import InferScaleClient
from tests.cli.memory_server import memory_server

WRITES, FACTS = 40, 200
"""What each program does: so many requests, so many facts of its own in all."""

WRITER = """
import sys
from inferscale_sdk import InferScaleClient

url, name, writes, facts = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
with InferScaleClient(base_url=url, max_retries=0) as client:
    for number in range(writes):
        mine = [f"{name} {n}" for n in range(number * facts // writes, (number + 1) * facts // writes)]
        outcomes = client.memories.add("alice", facts=[*mine, f"both {number}"])
        assert all(outcome.status == "stored" for outcome in list(outcomes)[:-1]), outcomes
"""


def test_two_processes_that_write_200_facts_each_lose_none_and_keep_their_order(tmp_path: Path) -> None:
    with memory_server(tmp_path) as url:
        commands = [[sys.executable, "-c", WRITER, url, name, str(WRITES), str(FACTS)] for name in ("left", "right")]
        writers = [subprocess.Popen(command, stderr=subprocess.PIPE) for command in commands]
        assert [(writer.communicate()[1], writer.returncode) for writer in writers] == [(b"", 0)] * 2
        with InferScaleClient(base_url=url) as client:
            texts = [fact.text for fact in client.memories.list("alice")]
    for name in ("left", "right"):
        assert [text for text in texts if text.startswith(name)] == [f"{name} {number}" for number in range(FACTS)]
    both = sorted(text for text in texts if text.startswith("both"))
    assert both == sorted(f"both {number}" for number in range(WRITES))
