"""The real mem0 with Qdrant in local mode, over a small server's embeddings."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from inferscale_sdk import InferScaleClient
from inferscale_server.bench import encoding
from inferscale_server.bench.conversation import DatedFact
from inferscale_server.bench.mem0_memory import Mem0Memory, open_mem0, system_message
from inferscale_server.bench.probe import FACT_COUNTS
from inferscale_server.cli import main
from inferscale_server.wording import DEFAULT_SYSTEM, MEMORY_INTRO
from tests.bench.invented import long_session, write
from tests.bench.small_server import SmallServer, small_server

FACTS = [
    DatedFact("Bruno is a dog", "Ilse", datetime(2023, 5, 8, tzinfo=UTC)),
    DatedFact("zzz jazz quiz"),
    DatedFact("Bruno is a good dog"),
]


@pytest.fixture
def server() -> Iterator[SmallServer]:
    with small_server() as server:
        yield server


@pytest.fixture
def mem0(server: SmallServer, tmp_path: Path) -> Iterator[Mem0Memory]:
    with InferScaleClient(base_url=server.url) as client:
        memory = open_mem0(client, tmp_path)
        memory.take_in(FACTS, lambda words: None)
        yield memory
        memory.close()


def test_what_mem0_finds_stands_where_our_memory_would_with_the_best_fact_last(mem0: Mem0Memory) -> None:
    asked = mem0.prompted("Bruno is a dog", 2)
    system, question = asked.messages
    assert (asked.mode, asked.k, question) == ("off", 2, {"role": "user", "content": "Bruno is a dog"})
    lines = "- Bruno is a good dog\n- [8 May 2023] Ilse: Bruno is a dog\n"
    assert system == {"role": "system", "content": f"{DEFAULT_SYSTEM}\n\n{MEMORY_INTRO}{lines}"}


def test_mem0_recalls_as_many_facts_as_it_is_asked_for_however_far_they_are(mem0: Mem0Memory) -> None:
    assert str(mem0.prompted("Bruno", 3).messages[0]["content"]).count("\n- ") == 3


def test_the_best_line_comes_last() -> None:
    assert system_message(["- best\n", "- worst\n"]).endswith("- worst\n- best\n")


def test_ttft_times_mem0_from_its_own_search_on(
    server: SmallServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(encoding, "POLL_S", 0.0)
    monkeypatch.setenv("COLUMNS", "200")
    data, figures = write(tmp_path, changed=long_session(45)), tmp_path / "figures"
    with pytest.raises(SystemExit) as ended:
        options = ("--base-url", server.url, "--questions", "1", "--mem0", "--json", str(figures))
        main(["bench", "ttft", "--data", str(data), *options])
    assert ended.value.code == 0
    read = json.loads(figures.read_text())
    rival = [(cell["k"], cell["samples"]) for cell in read["cells"] if cell["mode"] == "mem0"]
    assert rival == [(k, 1) for k in FACT_COUNTS]
    assert read["ratios"][-1]["name"] == "mem0 / kv at k = 50"
    assert [system.count("\n- ") for system in server.systems] == [*FACT_COUNTS, *FACT_COUNTS]
    assert "mem0" in capsys.readouterr().out
