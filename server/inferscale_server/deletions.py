"""Deletions: those that wait while the writer is busy share its next commit, and so its wait for the disk.

Knows: who waits for what. Refuses to know: how a fact is deleted. Belongs to one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from inferscale_server.forget import Doomed


@dataclass(frozen=True, slots=True)
class _Waiter:
    """Who asked, and where the answer goes: was the fact there?"""

    doomed: Doomed
    answer: asyncio.Future[bool]


class Deletions:
    """Collects single deletes. `delete_all` deletes many and says for each whether it was there."""

    def __init__(self, delete_all: Callable[[Sequence[Doomed]], Awaitable[Sequence[bool]]]) -> None:
        self._delete_all = delete_all
        self._waiting: list[_Waiter] = []
        self._turn = asyncio.Lock()

    async def delete(self, doomed: Doomed) -> bool:
        """Was it there? It is not any more. Raises what `delete_all` raised for all who shared the commit."""
        waiter = _Waiter(doomed, asyncio.get_running_loop().create_future())
        self._waiting.append(waiter)
        async with self._turn:
            if not waiter.answer.done():  # nobody before has done it along with its own
                batch, self._waiting = self._waiting, []
                await self._settle(batch)
        return await waiter.answer

    async def _settle(self, batch: Sequence[_Waiter]) -> None:
        try:
            there = await self._delete_all([waiter.doomed for waiter in batch])
        except Exception as error:
            for waiter in batch:
                waiter.answer.set_exception(error)
            return
        for waiter, was_there in zip(batch, there, strict=True):
            waiter.answer.set_result(was_there)
