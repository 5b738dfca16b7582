"""Conversations of several turns: whole ones are sent, all kinds of memory get the same, and the ratios are right."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from inferscale_server.bench import encoding
from inferscale_server.bench.session_cell import (
    KV_SESSION,
    TEXT,
    TalkTurn,
    session_cells,
    session_complaints,
    session_ratios,
    session_totals,
)
from inferscale_server.bench.sessions import KINDS, WARM_UP_TURNS
from inferscale_server.cli import main
from tests.bench.invented import long_session, write
from tests.bench.small_server import FRAME_TOKENS, TOKENS_A_FACT, SmallServer, small_server

NAMES = [kind.name for kind in KINDS]
TURN = TalkTurn(TEXT, 0, 1, 100.0, 50, 0, "text", "text", "requested", "", False)
KEPT = TalkTurn(KV_SESSION, 0, 1, 40.0, 20, 30, "kv", "kv", "encoded", "kept", True)
FACTS, TURNS = 5, 3


def bench(server: SmallServer, folder: Path, *options: str) -> int:
    """Two conversations of three turns."""
    data = write(folder, changed=long_session(5))
    argv = ("--conversations", "2", "--turns", str(TURNS), "--facts", str(FACTS), "--tokens", "2")
    with pytest.raises(SystemExit) as ended:
        main(["bench", "sessions", "--data", str(data), "--base-url", server.url, *argv, *options])
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "POLL_S", 0.0)
    monkeypatch.setenv("COLUMNS", "200")


def test_every_kind_of_memory_has_the_same_conversations_and_leaves_figures_and_plot(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figures, plot = tmp_path / "figures", tmp_path / "plot.svg"
    with small_server() as server:
        assert bench(server, tmp_path, "--json", str(figures), "--plot", str(plot)) == 0
    read = json.loads(figures.read_text())
    assert [(cell["memory"], cell["turn"]) for cell in read["cells"]] == [
        (name, turn) for name in NAMES for turn in range(1, TURNS + 1)
    ]
    computed = {total["memory"]: total["prefilled_tokens"] for total in read["totals"]}
    memory = FACTS * TOKENS_A_FACT
    assert computed["text"] == TURNS * (FRAME_TOKENS + memory)
    assert computed["text, session"] == TURNS * FRAME_TOKENS + memory
    assert computed["off"] == computed["kv"] == computed["kv, session"] == TURNS * FRAME_TOKENS
    assert read["ratios"][1]["value"] == pytest.approx(FRAME_TOKENS / (FRAME_TOKENS + memory))
    asked = {
        mode: {chat["question"] for chat in server.chats if chat["mode"] == mode} for mode in ("off", "text", "kv")
    }
    assert asked["off"] == asked["text"] == asked["kv"] and len(asked["off"]) == 2 * TURNS + WARM_UP_TURNS
    assert "<svg" in plot.read_text() and "over the turns of a conversation, medians of 2" in capsys.readouterr().out


def test_a_turn_sends_all_that_was_said_before_and_what_was_answered(tmp_path: Path) -> None:
    with small_server() as server:
        assert bench(server, tmp_path) == 0
    longest = [talk for talk in server.talks if len(talk) == 2 * TURNS - 1]
    assert len(longest) == 2 * len(KINDS)
    for talk in longest:
        assert [message["role"] for message in talk] == ["user", "assistant"] * (TURNS - 1) + ["user"]
        assert [message["content"] for message in talk[1::2]] == ["Bruno"] * (TURNS - 1)


def test_no_two_kinds_share_a_users_cache_and_no_two_conversations_a_session(tmp_path: Path) -> None:
    with small_server() as server:
        assert bench(server, tmp_path) == 0
    assert len({user for user, _ in server.sessions}) == 2  # the two kinds that keep sessions
    assert len({session for _, session in server.sessions}) == 2 * (2 + 1)  # warm-up too


def test_an_answer_served_otherwise_or_in_no_session_fails_the_benchmark(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with small_server(never_injects=True, keeps_sessions=False) as server:
        assert bench(server, tmp_path) == 1
    told = capsys.readouterr().err
    assert "turn 1 of kv was served as text (nothing_encoded)" in told
    assert "turn 3 of text, session was in no session" in told


def test_totals_are_medians_of_whole_conversations() -> None:
    turns = [
        replace(TURN, conversation=talk, turn=turn, first_token_ms=ms, prefilled_tokens=10 * talk + turn)
        for talk, waits in enumerate(([1.0, 100.0], [50.0, 60.0], [10.0, 20.0]))
        for turn, ms in enumerate(waits, 1)
    ]
    (total,) = session_totals(turns, [TEXT])
    assert (total.conversations, total.first_token_ms, total.prefilled_tokens) == (3, 101.0, 23)
    assert total.turn_p99_ms == 100.0
    assert [cell.first_token_ms for cell in session_cells(turns, [TEXT])] == [10.0, 60.0]


def test_a_session_is_judged_by_text_with_the_prefix_cache() -> None:
    waits, tokens = session_ratios(session_totals([TURN, KEPT], [TEXT, KV_SESSION]))
    assert (waits.value, waits.met, tokens.value, tokens.met) == (0.4, True, 0.4, True)
    slow = replace(KEPT, first_token_ms=101.0, prefilled_tokens=51)
    assert [ratio.met for ratio in session_ratios(session_totals([TURN, slow], [TEXT, KV_SESSION]))] == [False, False]


def test_only_what_should_be_in_a_session_must_be() -> None:
    assert session_complaints([TURN, KEPT]) == []
    assert session_complaints([replace(KEPT, session="")]) == [f"turn 1 of {KV_SESSION} was in no session"]


def test_the_floor_is_another_user_without_facts(tmp_path: Path) -> None:
    with small_server() as server:
        assert bench(server, tmp_path) == 0
    assert len(server.facts) == (len(KINDS) - 1) * 10


def test_turns_that_would_find_fewer_facts_are_not_started(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with small_server() as server:
        assert bench(server, tmp_path, "--limit", "4") == 2
    assert "value 5 is never reached: only 4 facts are loaded" in capsys.readouterr().err and server.chats == []
