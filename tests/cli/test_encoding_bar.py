"""`memories add --wait`: how far the encoding is, on a terminal and off it."""

from __future__ import annotations

import io
from pathlib import Path

import httpx
import pytest
from rich.console import Console

from inferscale_server.cli import main, memories, transfer
from inferscale_server.cli.encoding_bar import wait_encoded
from tests.sdk.script import Script, answer, script

STORED = answer(json={"results": [{"id": "f1", "text": "Bruno is old.", "status": "stored"}]})


def looks(*queued: int) -> list[httpx.Response]:
    """What a server tells a user whose facts are encoded one after another."""
    return [answer(json={"facts": 3, "tokens": 30, "queued": left}) for left in queued]


def test_a_bar_shows_how_many_of_the_facts_are_encoded() -> None:
    out = io.StringIO()
    wait_encoded(script(*looks(3, 1, 0)).client(), "alice", Console(file=out, force_terminal=True, width=80))
    assert "encoded" in out.getvalue() and "3/3" in out.getvalue()


def test_off_a_terminal_nothing_is_drawn() -> None:
    out, server = io.StringIO(), script(*looks(3, 1, 0))
    wait_encoded(server.client(), "alice", Console(file=out))
    assert out.getvalue() == "" and len(server.requests) == 3


def add(server: Script, monkeypatch: pytest.MonkeyPatch, *flags: str) -> list[str]:
    """`inferscale memories add`; returns the paths that it asked for."""
    monkeypatch.setattr(memories, "connect", lambda url, api_key: server.client())
    with pytest.raises(SystemExit) as ended:
        main(["memories", "add", "Bruno is old.", "--user", "alice", *flags])
    assert ended.value.code == 0
    return [request.url.path for request in server.requests]


def test_add_returns_at_once_unless_it_is_told_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    assert add(script(STORED), monkeypatch) == ["/v1/memories"]
    told = add(script(STORED, *looks(1, 0)), monkeypatch, "--wait")
    assert told == ["/v1/memories", *["/v1/users/alice/footprint"] * 2]


def test_an_import_can_wait_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "facts").write_text('{"text": "Bruno is old."}\n')
    server = script(answer(json={"imported": 1, "duplicates": 0}), *looks(2, 0))
    monkeypatch.setattr(transfer, "connect", lambda url, api_key: server.client())
    with pytest.raises(SystemExit) as ended:
        main(["memories", "import", str(tmp_path / "facts"), "--user", "alice", "--wait"])
    assert ended.value.code == 0
    assert [request.url.path for request in server.requests[1:]] == ["/v1/users/alice/footprint"] * 2
