"""What leaves whole and comes back whole: pages, users, export and import."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from inferscale_server.errors import InvalidRequest
from inferscale_server.facts import SCAN_ROWS, FactStore
from inferscale_server.filters import parse_filter
from inferscale_server.memory import EXPORT_PAGE, MemoryService
from inferscale_server.searches import LOOP_FACTS
from inferscale_server.types import Fact, FactChange, FactDraft, ImportedFact, Owner, UserCount
from tests.memory.fakes import Clock, started

ALICE = Owner("local", "alice")
BOB = Owner("local", "bob")
TEXTS = (
    "I like café au lait and cafe\u0301 au lait",
    "我的狗叫雷克斯",
    "ฉันชอบกินมะม่วง",
    "family: 👩‍👩‍👧‍👦 flag: 🏴󠁧󠁢󠁳󠁣󠁴󠁿",
    "שלום \u202bעולם\u202c مرحبا",
    "C:\\Users\\alice\\new\\table.txt",
    "a\ttab, a\nline, \u2028 and \ufeff",
    '{"json": "\\ud83d"}',
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "facts.sqlite3"


@pytest.fixture
async def memory(path: Path) -> AsyncIterator[MemoryService]:
    service = await started(FactStore(path))
    yield service
    await service.aclose()


async def exported(memory: MemoryService, owner: Owner) -> list[Fact]:
    return [fact async for fact in memory.export(owner)]


def imported(fact: Fact) -> ImportedFact:
    said = (fact.text, fact.speaker, fact.occurred_at, fact.session_id, fact.metadata, fact.expires_at)
    kept = {"id": fact.id, "created_at": fact.created_at, "updated_at": fact.updated_at}
    return ImportedFact(*said, agent_id=fact.agent_id, run_id=fact.run_id, **kept)


async def test_257_facts_page_as_257_distinct_facts_while_others_come_and_go(memory: MemoryService) -> None:
    await memory.add(ALICE, [FactDraft(f"fact {i}") for i in range(257)])
    seen: list[Fact] = []
    page = await memory.page(ALICE, 20)
    while True:
        seen += page.facts
        await memory.delete(ALICE, seen[len(seen) // 2].id)
        await memory.add(ALICE, [FactDraft(f"late {len(seen)}")])
        if page.next_cursor is None or page.facts[-1].text.startswith("late"):
            break
        page = await memory.page(ALICE, 20, page.next_cursor)
    texts = [fact.text for fact in seen]
    assert len(texts) == len(set(texts)) and {f"fact {i}" for i in range(257)} <= set(texts)


async def test_a_filtered_page_is_full_however_far_apart_the_matches_are(memory: MemoryService) -> None:
    many = SCAN_ROWS + 100
    await memory.add(ALICE, [FactDraft(f"fact {i}", metadata={"n": i}) for i in range(many)])
    where = parse_filter({"n": {"in": [3, 4, many - 1]}})
    first = await memory.page(ALICE, 2, None, where)
    assert [fact.text for fact in first.facts] == ["fact 3", "fact 4"]
    last = await memory.page(ALICE, 2, first.next_cursor, where)
    assert [fact.text for fact in last.facts] == [f"fact {many - 1}"] and last.next_cursor is None
    assert (await memory.page(ALICE, 3, None, where)).next_cursor is None


async def test_a_filtered_search_fills_its_k_from_what_matches(memory: MemoryService) -> None:
    drafts = [FactDraft("tea " * (i + 1), metadata={"n": i}) for i in range(50)]
    await memory.add(ALICE, [*drafts, FactDraft("nothing like it", metadata={"n": 50})])
    hits = await memory.search(ALICE, "tea", 5, None, parse_filter({"n": {"gte": 48}}))
    assert [hit.fact.metadata["n"] for hit in hits] == [48, 49, 50]
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    assert len(await memory.search(ALICE, "tea", 5, 0.99, parse_filter({"n": {"gte": 48}}))) == 2


async def test_a_filtered_search_over_many_facts_finds_the_same_as_over_few(memory: MemoryService) -> None:
    drafts = [FactDraft(f"tea {i}", metadata={"n": i}) for i in range(LOOP_FACTS)]
    await memory.add(ALICE, drafts)
    await memory.add(BOB, drafts[-5:])
    where = parse_filter({"n": {"gte": LOOP_FACTS - 5}})
    hers = await memory.search(ALICE, "tea 7", 10, None, where)
    his = await memory.search(BOB, "tea 7", 10, None, where)
    assert [hit.fact.text for hit in hers] == [hit.fact.text for hit in his]


async def test_users_come_once_each_by_name_with_their_counts(memory: MemoryService) -> None:
    names = sorted([f"user {i:02}" for i in range(25)] + ["Zoë", "ฉัน", "a/b", "user"])
    for i, name in enumerate(names):
        await memory.add(Owner("local", name), [FactDraft(f"fact {n}") for n in range(i % 3 + 1)])
    await memory.add(Owner("other", "stranger"), [FactDraft("x")])
    seen: list[UserCount] = []
    cursor: str | None = None
    while True:
        page = await memory.users("local", 7, cursor)
        seen += page.users
        cursor = page.next_cursor
        if cursor is None:
            break
    assert seen == [UserCount(name, i % 3 + 1) for i, name in enumerate(names)]
    assert (await memory.users("nobody", 7)).users == ()


async def test_a_user_without_facts_is_none(memory: MemoryService) -> None:
    await memory.add(ALICE, [FactDraft("one"), FactDraft("two")])
    (outcome,) = await memory.add(BOB, [FactDraft("one")])
    await memory.delete(BOB, str(outcome.id))
    assert (await memory.users("local")).users == (UserCount("alice", 2),)
    await memory.delete_owner(ALICE)
    assert (await memory.users("local")).users == ()


@pytest.mark.parametrize(
    ("limit", "cursor", "param"), [(0, None, "limit"), (5, "x", "cursor"), (5, "YWZ0ZXI6MQ", "cursor")]
)
async def test_a_bad_page_of_users_is_refused_by_name(
    memory: MemoryService, limit: int, cursor: str | None, param: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await memory.users("local", limit, cursor)
    assert caught.value.param == param


async def test_what_is_exported_and_imported_elsewhere_is_equal(memory: MemoryService, tmp_path: Path) -> None:
    clock = Clock()
    more = [FactDraft(f"fact {i}") for i in range(EXPORT_PAGE + 3)]
    texts = [FactDraft(text, "alice", 5.0, "s1", {"text": text}, 4e9) for text in TEXTS]
    outcomes = await memory.add(ALICE, [*texts, *more])
    await memory.update(ALICE, str(outcomes[0].id), FactChange(metadata={"changed": True}))
    facts = await exported(memory, ALICE)
    assert [fact.text for fact in facts[: len(TEXTS)]] == list(TEXTS)
    elsewhere = await started(FactStore(tmp_path / "elsewhere" / "facts.sqlite3", clock=clock))
    back = await elsewhere.add(ALICE, [imported(fact) for fact in facts])
    assert {outcome.status for outcome in back} == {"stored"}
    assert await exported(elsewhere, ALICE) == facts
    assert await elsewhere.search(ALICE, TEXTS[5], 3) == await memory.search(ALICE, TEXTS[5], 3)
    again = await elsewhere.add(ALICE, [imported(fact) for fact in facts])
    assert {outcome.status for outcome in again} == {"duplicate"}
    assert await exported(elsewhere, ALICE) == facts
    await elsewhere.aclose()


async def test_what_was_deleted_can_be_imported_under_its_old_id(memory: MemoryService) -> None:
    await memory.add(ALICE, [FactDraft("one"), FactDraft("two")])
    facts = await exported(memory, ALICE)
    await memory.delete_owner(ALICE)
    await memory.add(ALICE, [imported(fact) for fact in facts])
    back = await exported(memory, ALICE)
    assert [(fact.id, fact.text, fact.created_at) for fact in back] == [
        (fact.id, fact.text, fact.created_at) for fact in facts
    ]
    events = await memory.history(ALICE, facts[0].id)
    assert [(event.event, event.text) for event in events] == [("added", None), ("deleted", None), ("added", "one")]


async def test_an_import_cannot_take_over_another_users_fact(memory: MemoryService) -> None:
    (hers,) = await memory.add(ALICE, [FactDraft("my code is 1234")])
    (his,) = await memory.add(BOB, [ImportedFact("mine now", id=hers.id)])
    assert his.status == "stored" and his.id != hers.id
    assert [fact.text for fact in await exported(memory, ALICE)] == ["my code is 1234"]


@pytest.mark.parametrize("written", ["", "../../etc/passwd", "F" * 32, "a" * 31, "a" * 33, "g" * 32, "a" * 31 + "\0"])
async def test_an_id_that_is_not_one_of_ours_is_replaced(memory: MemoryService, written: str) -> None:
    (outcome,) = await memory.add(ALICE, [ImportedFact("one", id=written)])
    assert outcome.status == "stored" and outcome.id != written
    assert outcome.id is not None and len(outcome.id) == 32


async def test_two_imported_facts_of_one_id_are_two_facts(memory: MemoryService) -> None:
    twins = [ImportedFact("one", id="a" * 32), ImportedFact("two", id="a" * 32)]
    first, second = await memory.add(ALICE, twins)
    assert first.id == "a" * 32 != second.id and memory.count(ALICE) == 2


@pytest.mark.parametrize("text", TEXTS)
async def test_a_text_in_any_script_comes_back_byte_for_byte(memory: MemoryService, text: str) -> None:
    (outcome,) = await memory.add(ALICE, [FactDraft(text, text[:5], metadata={text: text})])
    fact = await memory.get(ALICE, str(outcome.id))
    stored = (await memory.page(ALICE)).facts[0]
    assert fact == stored and (stored.text, stored.metadata) == (text, {text: text})
    assert (await memory.search(ALICE, text, 1))[0].fact == fact
