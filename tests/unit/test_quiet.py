"""What can wait waits until nobody is disturbed, and not for ever; KV files are written then."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from inferscale_server import kv_disk
from inferscale_server.quiet import Quiet
from inferscale_server.recipe import Recipe

from .builders import fact
from .engines import world

A, B = object(), object()


async def test_it_is_quiet_once_the_last_has_ended() -> None:
    quiet = Quiet()
    assert await quiet.wait(0)
    quiet.begins(A)
    quiet.begins(B)
    waiting = asyncio.create_task(quiet.wait(60))
    quiet.ends(A)
    quiet.ends(A)
    await asyncio.sleep(0)
    assert not waiting.done()
    quiet.ends(B)
    assert await waiting


async def test_nobody_waits_for_ever() -> None:
    quiet = Quiet()
    quiet.begins(A)
    assert not await quiet.wait(0)


async def test_files_are_written_when_no_chat_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_disk, "CALM_S", 60.0)
    here = world(folder=tmp_path, recipe=Recipe(header=False))
    here.engine.quiet.begins(A)
    here.add(fact(1))
    draining = asyncio.create_task(here.encoder.drain())
    for _ in range(100):
        await asyncio.sleep(0)
    assert here.disk is not None and here.disk.waiting > 0
    assert list(tmp_path.rglob("*.kv")) == [] and not draining.done()  # noqa: ASYNC240
    here.engine.quiet.ends(A)
    await draining
    assert len(list(tmp_path.rglob("*.kv"))) == 2  # noqa: ASYNC240


async def test_files_are_written_beside_chats_that_never_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_disk, "CALM_S", 0.0)
    here = world(folder=tmp_path, recipe=Recipe(header=False))
    here.engine.quiet.begins(A)
    here.add(fact(1))
    await here.encoder.drain()
    assert here.disk is not None and len(here.disk.shelf) == 2
