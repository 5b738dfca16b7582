"""Claims about repeated writes with one key."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

import pytest

from inferscale_server.edge.idempotency import OncePerKey, parse_key
from inferscale_server.errors import Conflict, InvalidRequest, Unavailable
from inferscale_server.types import IdempotencyKey, Owner

ALICE, BOB = Owner("local", "alice"), Owner("local", "bob")


def named(key: str, body: bytes = b"body") -> IdempotencyKey:
    name = parse_key(key, body)
    assert name is not None
    return name


class Writes:
    """Counts how often each write ran; a write waits until `gate` is open."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.fault: Exception | None = None

    def of(self, name: str) -> Callable[[], Coroutine[object, object, str]]:
        async def write() -> str:
            self.ran.append(name)
            await self.gate.wait()
            if self.fault is not None:
                raise self.fault
            return f"{name} {len(self.ran)}"

        return write


@pytest.fixture
async def writes() -> Writes:
    return Writes()


async def test_a_key_runs_once(writes: Writes) -> None:
    once: OncePerKey[str] = OncePerKey()
    results = [await once.run(ALICE, named("k"), writes.of("a")) for _ in range(3)]
    assert (results, writes.ran) == (["a 1"] * 3, ["a"])


async def test_without_a_key_every_write_runs(writes: Writes) -> None:
    once: OncePerKey[str] = OncePerKey()
    assert [await once.run(ALICE, None, writes.of("a")) for _ in range(2)] == ["a 1", "a 2"]


async def test_two_owners_may_use_one_key(writes: Writes) -> None:
    once: OncePerKey[str] = OncePerKey()
    await once.run(ALICE, named("k", b"1"), writes.of("a"))
    assert await once.run(BOB, named("k", b"2"), writes.of("b")) == "b 2"


async def test_another_body_is_a_conflict_even_while_the_first_runs(writes: Writes) -> None:
    once: OncePerKey[str] = OncePerKey()
    writes.gate.clear()
    first = asyncio.create_task(once.run(ALICE, named("k", b"1"), writes.of("a")))
    await asyncio.sleep(0)
    with pytest.raises(Conflict):
        await once.run(ALICE, named("k", b"2"), writes.of("b"))
    writes.gate.set()
    assert (await first, writes.ran) == ("a 1", ["a"])


async def test_who_gives_up_does_not_stop_the_write_for_the_others(writes: Writes) -> None:
    once: OncePerKey[str] = OncePerKey()
    writes.gate.clear()
    first, second = (asyncio.create_task(once.run(ALICE, named("k", b"1"), writes.of("a"))) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    writes.gate.set()
    assert (await second, writes.ran, first.cancelled()) == ("a 1", ["a"], True)


async def test_a_failed_write_runs_again(writes: Writes) -> None:
    once: OncePerKey[str] = OncePerKey()
    writes.fault = Unavailable("busy")
    with pytest.raises(Unavailable):
        await once.run(ALICE, named("k", b"1"), writes.of("a"))
    writes.fault = None
    assert await once.run(ALICE, named("k", b"1"), writes.of("a")) == "a 2"


async def test_the_oldest_key_of_an_owner_makes_room(writes: Writes) -> None:
    once: OncePerKey[str] = OncePerKey(keys_per_owner=2)
    for key in ("k1", "k2", "k1", "k3", "k1", "k2"):
        await once.run(ALICE, named(key), writes.of(key))
    assert writes.ran == ["k1", "k2", "k3", "k2"]


async def test_an_owner_with_many_keys_does_not_push_out_another(writes: Writes) -> None:
    once: OncePerKey[str] = OncePerKey(keys_per_owner=2, owners=2)
    for owner, key in [(BOB, "k"), *((ALICE, f"k{i}") for i in range(9)), (BOB, "k")]:
        await once.run(owner, named(key), writes.of(owner.user))
    assert writes.ran.count("bob") == 1


async def test_the_owner_idle_for_longest_makes_room(writes: Writes) -> None:
    once: OncePerKey[str] = OncePerKey(owners=1)
    for owner in (ALICE, BOB, ALICE):
        await once.run(owner, named("k"), writes.of(owner.user))
    assert writes.ran == ["alice", "bob", "alice"]


async def test_an_outcome_from_before_a_wipe_is_not_given_after_it(writes: Writes) -> None:
    once: OncePerKey[str] = OncePerKey()
    await once.run(ALICE, named("k", b"1"), writes.of("before"), wipes=0)
    await once.run(BOB, named("k", b"1"), writes.of("bob"), wipes=0)
    assert await once.run(ALICE, named("k", b"2"), writes.of("after"), wipes=1) == "after 3"
    assert await once.run(BOB, named("k", b"1"), writes.of("bob"), wipes=0) == "bob 2"


@pytest.mark.parametrize("key", ["", " ", "a b", "ä", "x" * 256, "a\n"])
def test_a_malformed_key_is_refused(key: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_key(key, b"")


def test_the_same_body_has_the_same_digest_and_no_key_is_no_name() -> None:
    assert named("k", b"1") == named("k", b"1") != named("k", b"2")
    assert parse_key(None, b"1") is None
