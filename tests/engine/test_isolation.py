"""Many owners and many requests at once while facts come and go: nobody sees another's, and everybody is served."""

from __future__ import annotations

import asyncio
import json
import secrets
from dataclasses import dataclass, field

from .live import Answer, LiveServer

OWNERS, CHATS_AT_ONCE = 50, 32
MOST_NOTES = 400
CROWD = 20
QUESTION = "What is the code of the safe?"


@dataclass
class Holder:
    """An owner all of whose facts hold the same canary."""

    user: str
    canary: str = field(default_factory=lambda: secrets.token_hex(4))
    safe_id: str = ""
    note_ids: list[str] = field(default_factory=list)

    async def add(self, server: LiveServer, text: str) -> str:
        """Store one fact; returns its id."""
        body = {"user_id": self.user, "facts": [text]}
        added = await server.client.post("/v1/memories", json=body)
        assert added.status_code == 200, added.text
        return added.json()["results"][0]["id"]  # type: ignore[no-any-return]

    async def store_safe(self, server: LiveServer) -> None:
        self.safe_id = await self.add(server, f"The code of the safe is {self.canary}.")

    async def churn(self, server: LiveServer, number: int) -> None:
        """A new note in place of the one before."""
        self.note_ids.append(await self.add(server, f"Note {number} says {self.canary}."))
        if len(self.note_ids) > 1:
            url = f"/v1/memories/{self.note_ids.pop(0)}"
            deleted = await server.client.delete(url, params={"user_id": self.user})
            assert deleted.status_code == 200, deleted.text

    async def forget(self, server: LiveServer) -> None:
        """Delete everything, so that later tests have the slab for themselves."""
        deleted = await server.client.delete("/v1/memories", params={"user_id": self.user})
        assert deleted.status_code == 200, deleted.text


async def chat_all(server: LiveServer, holders: list[Holder]) -> list[Answer]:
    """One chat of each owner, some in mode kv and some in auto, `CHATS_AT_ONCE` of them at a time."""
    free = asyncio.Semaphore(CHATS_AT_ONCE)

    async def chat(number: int, holder: Holder) -> Answer:
        async with free:
            return await server.chat(holder.user, QUESTION, "kv" if number % 2 else "auto", max_tokens=20)

    return await asyncio.gather(*(chat(number, holder) for number, holder in enumerate(holders)))


async def churn_until(server: LiveServer, holders: list[Holder], over: asyncio.Event) -> int:
    """Add and delete notes of all owners in turn; returns how many were added. Two for each at least: an owner's
    second replaces the first."""
    number = 0
    while number < 2 * len(holders) or (number < MOST_NOTES and not over.is_set()):
        await holders[number % len(holders)].churn(server, number)
        number += 1
    return number


async def chat_in_churn(server: LiveServer, holders: list[Holder]) -> tuple[list[Answer], int]:
    """Two chats of each owner beside two who add and delete; their answers, and how many notes were added."""
    over = asyncio.Event()
    churning = [asyncio.create_task(churn_until(server, half, over)) for half in (holders[::2], holders[1::2])]
    try:
        answers = await chat_all(server, holders * 2)
    finally:
        over.set()
    return answers, sum(await asyncio.gather(*churning))


async def test_S1_no_owner_of_fifty_sees_anothers_canary_while_facts_come_and_go(server: LiveServer) -> None:
    holders = [Holder(f"holder-{number}") for number in range(OWNERS)]
    await asyncio.gather(*(holder.store_safe(server) for holder in holders))
    await server.encoded()
    answers, notes = await chat_in_churn(server, holders)
    await asyncio.gather(*(holder.forget(server) for holder in holders))
    foreign = recited = 0
    for holder, answer in zip(holders * 2, answers, strict=True):
        assert holder.safe_id in answer.owned_ids and holder.canary in json.dumps(answer.told["facts"]), answer.told
        seen = json.dumps(answer.body)
        foreign += sum(other.canary in seen for other in holders if other is not holder)
        recited += holder.canary in answer.text
    injected = sum(answer.told["mode"] == "kv" for answer in answers)
    print(f"{len(answers)} chats, {notes} notes, {injected} by KV, {recited} recited: {foreign} foreign canaries")
    assert foreign == 0 and notes >= 2 * OWNERS and injected > 0


async def add_in_order(server: LiveServer, holder: Holder, adder: int) -> None:
    for part in ("begins", "ends"):
        await holder.add(server, f"Parcel {adder} {part}.")


async def test_twenty_chats_and_twenty_adds_of_one_user_at_once_all_succeed(server: LiveServer) -> None:
    crowd = Holder("crowd")
    await crowd.store_safe(server)
    await server.encoded()
    chats = [server.chat(crowd.user, QUESTION, max_tokens=8) for _ in range(CROWD)]
    adds = [add_in_order(server, crowd, adder) for adder in range(CROWD)]
    answers, _ = await asyncio.gather(asyncio.gather(*chats), asyncio.gather(*adds))
    assert [answer.status for answer in answers] == [200] * CROWD
    assert all(crowd.safe_id in answer.owned_ids for answer in answers)
    page = await server.client.get("/v1/memories", params={"user_id": crowd.user, "limit": 100})
    texts = [fact["text"] for fact in page.json()["data"]]
    assert len(texts) == len(set(texts)) == 1 + 2 * CROWD
    for adder in range(CROWD):
        assert texts.index(f"Parcel {adder} begins.") < texts.index(f"Parcel {adder} ends.")
