"""Turns of a session on small real stores: the block stays, what is new is noted, and what must be chosen anew is."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise, takewhile
from pathlib import Path

import pytest
import pytest_asyncio

from inferscale_server.catalog import Catalog
from inferscale_server.encode import Encoder, FactSource
from inferscale_server.facts import FactStore
from inferscale_server.filters import parse_filter
from inferscale_server.index import ExactIndex
from inferscale_server.memory import MemoryService
from inferscale_server.plan import Frame
from inferscale_server.recall import Recall, header_job_of
from inferscale_server.recipe import Recipe
from inferscale_server.session_notes import Said
from inferscale_server.session_recall import SessionAsk, SessionRecall, SessionTurn
from inferscale_server.sessions import Sessions
from inferscale_server.staging import Stager
from inferscale_server.tiers import HostTier
from inferscale_server.types import FactChange, FactDraft, Owner
from tests.memory.fakes import FakeEmbedder

from .builders import ALICE, BOB
from .engines import HEADER_IDS, WordTokenizer
from .host_engine import HostEngine

ROOM = 2_000
BLOCK = 16
LONG_TALK = "we talked about the weather for a very long time " * 12


class _Sink:
    """The encoder and the sessions hear of every change, as in the server."""

    def __init__(self, encoder: Encoder, sessions: Sessions) -> None:
        self._encoder, self._sessions = encoder, sessions
        self.added, self.settled = encoder.added, encoder.settled

    def forgotten(self, owner: Owner, fact_ids: tuple[str, ...]) -> None:
        self._sessions.forget_facts(owner, fact_ids)
        self._encoder.forgotten(owner, fact_ids)

    def owner_forgotten(self, owner: Owner) -> None:
        self._sessions.forget_owner(owner)
        self._encoder.owner_forgotten(owner)


@dataclass
class Talk:
    """A conversation as a client has it: it knows nothing of notes."""

    desk: Desk
    owner: Owner = ALICE
    said: list[Said] = field(default_factory=list)
    header: tuple[int, ...] = HEADER_IDS
    session: str = "s"

    async def ask(self, text: str, answer: str = "I see", **more: object) -> SessionTurn:
        """One more turn, and an answer to it."""
        self.said.append(Said("user", text))
        turn = await self.again(**more)
        self.said.append(Said("assistant", answer))
        return turn

    async def again(self, room: int = ROOM, **more: object) -> SessionTurn:
        """The same messages once more."""
        asked = SessionAsk(self.owner, self.session, tuple(self.said), **{"mode": "auto", **more})  # type: ignore[arg-type]
        return await self.desk.sessions.turn(asked, self._frame, lambda frame: room)

    async def _frame(self, notes: Mapping[int, str]) -> Frame:
        self.desk.rendered.append(dict(notes))
        words = " ".join(notes.get(place, "") + said.text for place, said in enumerate(self.said))
        return Frame(self.header, self.desk.tokenize(words))


@dataclass
class Desk:
    """Everything that a session's turns join."""

    sessions: SessionRecall
    kept: Sessions
    memory: MemoryService
    encoder: Encoder
    catalog: Catalog
    tokenize: WordTokenizer
    engine: HostEngine
    host: HostTier
    rendered: list[dict[int, str]] = field(default_factory=list)
    now: float = 0.0

    async def add(self, *texts: str, owner: Owner = ALICE, **more: object) -> list[str]:
        """Encoded facts; returns their ids."""
        added = await self.memory.add(owner, [FactDraft(text, **more) for text in texts])  # type: ignore[arg-type]
        await self.encoder.drain()
        return [str(outcome.id) for outcome in added]

    async def cool(self) -> None:
        """All facts of Alice lie in host memory only."""
        while await self.host.copy_some():
            pass
        self.catalog.drop_where(ALICE, lambda chunk: chunk.key.kind == "fact")


@pytest_asyncio.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    catalog, tokenize, engine = Catalog(2_000, "f"), WordTokenizer(), HostEngine()
    header, kept = header_job_of(ALICE, HEADER_IDS), Sessions(10, 60)
    memory: MemoryService

    source = FactSource(lambda owner: memory.facts(owner), lambda owner: memory.vectors(owner))
    encoder = Encoder(catalog, Recipe(primer_facts=3), engine, tokenize, header, source, 900)  # type: ignore[arg-type]
    memory = MemoryService(FactStore(tmp_path / "facts.sqlite3"), ExactIndex(), FakeEmbedder(), _Sink(encoder, kept))
    await memory.start()
    recall = Recall(memory, catalog, encoder, tokenize, 2, 0)  # type: ignore[arg-type]
    host = HostTier(catalog, 2_000, engine)
    catalog.on_commit = host.note
    stager = Stager(catalog, encoder.wipe, host, None, 1.0)
    sessions = SessionRecall(recall, kept, stager, clock=lambda: desk.now, block_tokens=BLOCK)
    desk = Desk(sessions, kept, memory, encoder, catalog, tokenize, engine, host)
    yield desk
    await memory.aclose()


def told(turn: SessionTurn) -> tuple[str, str]:
    assert turn.told is not None
    return turn.told.state, turn.told.reason


async def test_a_later_turn_keeps_the_block_and_its_salt(desk: Desk) -> None:
    await desk.add("goats eat grass", "goats climb")
    talk = Talk(desk)
    first = await talk.ask("what do goats eat")
    second = await talk.ask("do goats climb", LONG_TALK)
    assert told(first) == ("begun", "first_turn") and told(second) == ("kept", "same_block")
    assert first.plan is not None and second.plan is not None and first.plan.mode == second.plan.mode == "kv"
    assert first.plan.digest == second.plan.digest and first.plan.injection == second.plan.injection


async def test_every_prompt_begins_with_the_whole_prompt_before(desk: Desk) -> None:
    await desk.add("goats eat grass", "goats climb", "trains leave at noon", "ships sail at dawn")
    talk, prompts = Talk(desk), []
    for question in ("what do goats eat", "when do trains leave", "goats again", "when do ships sail"):
        turn = await talk.ask(question, LONG_TALK)
        assert turn.plan is not None
        prompts.append(turn.plan.prompt_ids)
    assert turn.told is not None and turn.told.noted, "nothing was noted, so nothing was tried"
    assert all(later[: len(earlier)] == earlier for earlier, later in pairwise(prompts))


async def test_what_is_new_is_noted_once_and_what_the_block_has_never(desk: Desk) -> None:
    goats = await desk.add("goats eat grass", "goats climb")
    (trains,) = await desk.add("trains leave at noon")
    talk = Talk(desk)
    await talk.ask("goats eat goats climb", LONG_TALK)
    second = await talk.ask("when do trains leave")
    third = await talk.ask("trains leave when")
    assert second.told is not None and third.told is not None
    assert second.told.block == set(goats) and [one.name for one in second.told.noted] == [trains]
    assert third.told.noted == second.told.noted
    assert [sum("trains leave at noon" in text for text in notes.values()) for notes in desk.rendered[-1:]] == [1]


async def test_a_fact_that_was_added_later_is_noted(desk: Desk) -> None:
    await desk.add("goats eat grass")
    talk = Talk(desk)
    await talk.ask("what do goats eat", LONG_TALK)
    (new,) = await desk.add("my dog is called Rex")
    turn = await talk.ask("what is my dog called")
    assert turn.told is not None and told(turn)[0] == "kept" and new in {one.name for one in turn.told.noted}


async def test_the_same_request_twice_is_the_same_prompt(desk: Desk) -> None:
    await desk.add("goats eat grass", "goats climb", "trains leave at noon")
    talk = Talk(desk)
    await talk.ask("what do goats eat", LONG_TALK)
    turn = await talk.ask("when do trains leave")
    talk.said.pop()
    again = await talk.again()
    assert turn.plan is not None and again.plan is not None and again.plan.prompt_ids == turn.plan.prompt_ids


async def test_a_deleted_fact_is_in_no_later_prompt(desk: Desk) -> None:
    goats, climb = await desk.add("goats eat grass", "goats climb")
    talk = Talk(desk)
    await talk.ask("what do goats eat", LONG_TALK)
    await desk.memory.delete(ALICE, goats)
    await desk.encoder.drain()
    turn = await talk.ask("what do goats eat")
    assert told(turn) == ("replanned", "facts_changed") and turn.told is not None and turn.told.block == {climb}


async def test_an_edited_fact_stands_in_the_next_prompt_as_it_reads_now(desk: Desk) -> None:
    (goats,) = await desk.add("goats eat grass")
    talk = Talk(desk)
    await talk.ask("what do goats eat", LONG_TALK)
    await desk.memory.update(ALICE, goats, FactChange(text="goats eat paper"))
    await desk.encoder.drain()
    turn = await talk.ask("what do goats eat")
    assert told(turn) == ("replanned", "facts_changed")
    assert [line.text for line in turn.shown] == ["goats eat paper"]


async def test_a_noted_fact_that_is_deleted_is_in_no_later_prompt(desk: Desk) -> None:
    await desk.add("goats eat grass", "goats climb")
    (trains,) = await desk.add("trains leave at noon")
    talk = Talk(desk)
    await talk.ask("goats eat goats climb", LONG_TALK)
    assert [line.name for line in (await talk.ask("when do trains leave")).shown][-1] == trains
    await desk.memory.delete(ALICE, trains)
    await desk.encoder.drain()
    turn = await talk.ask("when do trains leave")
    assert trains not in {line.name for line in turn.shown} and desk.rendered[-1] == {}


async def test_a_fact_whose_time_has_come_leaves_the_block_before_it_is_swept(desk: Desk) -> None:
    await desk.add("goats eat grass", expires_at=4e9)
    talk = Talk(desk)
    await talk.ask("what do goats eat", LONG_TALK)
    assert told(await talk.ask("what do goats eat")) == ("kept", "same_block")
    desk.now = 4e9
    assert told(await talk.ask("what do goats eat")) == ("replanned", "fact_expired")


async def test_a_deleted_user_is_answered_without_memory(desk: Desk) -> None:
    await desk.add("goats eat grass")
    talk = Talk(desk)
    await talk.ask("what do goats eat")
    await desk.memory.delete_owner(ALICE)
    turn = await talk.ask("what do goats eat")
    assert (
        turn.plan is None and turn.found.empty and all(session.block is None for session in [desk.kept.of(ALICE, "s")])
    )


async def test_another_owners_session_of_the_same_name_has_its_own_block(desk: Desk) -> None:
    await desk.add("goats eat grass")
    (bobs,) = await desk.add("goats eat roses", owner=BOB)
    await Talk(desk).ask("what do goats eat")
    turn = await Talk(desk, BOB).ask("what do goats eat")
    assert turn.told is not None and turn.told.block == {bobs}


async def test_chunks_that_left_the_slab_are_not_injected_but_expected_in_the_prefix_cache(desk: Desk) -> None:
    await desk.add("goats eat grass", "goats climb")
    talk = Talk(desk)
    first = await talk.ask("what do goats eat", LONG_TALK)
    desk.catalog.drop_where(ALICE, lambda chunk: chunk.key.kind == "fact")
    turn = await talk.ask("what do goats eat")
    assert told(turn) == ("kept", "same_block") and turn.plan is not None and first.plan is not None
    assert (turn.plan.mode, turn.plan.injection, turn.plan.chunks) == ("kv", None, ())
    assert turn.plan.digest == first.plan.digest


async def test_a_block_that_the_prefix_cache_lost_too_is_chosen_anew(desk: Desk) -> None:
    await desk.add("goats eat grass", "goats climb")
    talk = Talk(desk)
    await talk.ask("what do goats eat", LONG_TALK)
    desk.kept.of(ALICE, "s").drop("kv_gone")
    turn = await talk.ask("what do goats eat")
    assert told(turn) == ("replanned", "kv_gone") and turn.plan is not None and turn.plan.injection is not None


async def test_a_fact_that_is_encoded_anew_leaves_the_block_as_it_was(desk: Desk) -> None:
    await desk.add("goats eat grass")
    talk = Talk(desk)
    first = await talk.ask("what do goats eat", LONG_TALK)
    await desk.add("ships sail at dawn")  # the primer grows, and all is encoded behind it
    turn = await talk.ask("what do goats eat")
    assert first.plan is not None and turn.plan is not None and turn.plan.digest == first.plan.digest


async def test_a_session_that_began_as_text_stays_text(desk: Desk) -> None:
    await desk.memory.add(ALICE, [FactDraft("goats eat grass")])
    talk = Talk(desk)
    first = await talk.ask("what do goats eat", LONG_TALK)
    await desk.encoder.drain()
    second = await talk.ask("what do goats eat")
    assert first.plan is not None and second.plan is not None and second.plan.mode == first.plan.mode == "text"
    assert (
        told(second) == ("kept", "same_block")
        and second.plan.prompt_ids[: len(first.plan.prompt_ids)] == first.plan.prompt_ids
    )


async def test_a_turn_that_asks_for_text_gets_the_same_tokens_and_changes_nothing(desk: Desk) -> None:
    await desk.add("goats eat grass")
    talk = Talk(desk)
    await talk.ask("what do goats eat", LONG_TALK)
    turns = {}
    talk.said.append(Said("user", "goats?"))
    for mode, refusal in (("kv", None), ("text", None), ("auto", "prompt_logprobs"), ("kv", None)):
        turn = await talk.again(mode=mode, refusal=refusal)
        assert turn.plan is not None and told(turn) == ("kept", "same_block")
        turns[mode, refusal] = (turn.plan.mode, turn.plan.reason, turn.plan.prompt_ids)
    assert turns["kv", None][:2] == ("kv", "encoded") and turns["text", None][:2] == ("text", "requested")
    assert turns["auto", "prompt_logprobs"][:2] == ("text", "prompt_logprobs")
    assert len({prompt for _, _, prompt in turns.values()}) == 1


@pytest.mark.parametrize(
    ("more", "reason"),
    [({"where": parse_filter({"place": "here"})}, "filter"), ({"room": 5}, "no_room"), ({"mode": "text"}, None)],
)
async def test_terms_that_the_block_does_not_meet_need_another_block(desk: Desk, more, reason) -> None:  # type: ignore[no-untyped-def]
    await desk.add("goats eat grass", "goats climb", metadata={"place": "here"})
    talk = Talk(desk)
    await talk.ask("what do goats eat", LONG_TALK)
    turn = await talk.ask("what do goats eat", **more)
    assert told(turn) == (("kept", "same_block") if reason is None else ("replanned", reason))


async def test_another_system_prompt_needs_another_block(desk: Desk) -> None:
    await desk.add("goats eat grass")
    talk = Talk(desk)
    await talk.ask("what do goats eat", LONG_TALK)
    talk.header = (7, 7)
    assert told(await talk.ask("what do goats eat")) == ("replanned", "system_prompt")


async def test_a_new_block_is_chosen_where_that_computes_less_than_a_note(desk: Desk) -> None:
    await desk.add("goats eat grass", "goats climb", "trains leave at noon from the second platform behind the station")
    talk = Talk(desk)
    await talk.ask("what do goats eat")
    turn = await talk.ask("when do trains leave")
    assert told(turn) == ("replanned", "cheaper") and desk.rendered[-1] == {}


@pytest.mark.parametrize("answer", ["I see", "we talked about that " * 3, "we talked about that " * 20])
async def test_no_turn_computes_more_than_it_would_without_a_session(desk: Desk, answer: str) -> None:
    await desk.add(*(f"word{number} is as good as word{number + 1}" for number in range(40)))
    talk, states, seen = Talk(desk), [], ()
    for number in range(0, 40, 2):
        turn = await talk.ask(f"what of word{number}", answer)
        alone = await Talk(desk, said=talk.said[:-1], session=f"of turn {number}").again()
        assert turn.plan is not None and alone.plan is not None
        same = takewhile(lambda two: two[0] == two[1], zip(turn.plan.prompt_ids, seen, strict=False))
        in_cache = len(list(same)) // BLOCK * BLOCK
        computed = len(turn.plan.prompt_ids) - max(in_cache, turn.plan.injected_tokens)
        assert computed <= len(alone.plan.prompt_ids) - alone.plan.injected_tokens
        states.append(told(turn)[0])
        seen = (*turn.plan.prompt_ids, *desk.tokenize(" " + answer))
    assert "kept" in states  # where a conversation is long, its block pays


async def test_a_conversation_with_too_many_notes_gets_a_new_block(desk: Desk) -> None:
    await desk.add(*(f"word{number} is good" for number in range(60)))
    talk = Talk(desk)
    await talk.ask("word0", LONG_TALK * 4)
    reasons = [told(await talk.ask(f"word{number} word{number + 1}"))[1] for number in range(2, 40, 2)]
    assert "too_many_notes" in reasons and reasons[0] == "same_block"
    assert reasons[reasons.index("too_many_notes") + 1] in ("same_block", "cheaper")


async def test_a_conversation_without_facts_begins_its_block_when_there_are_some(desk: Desk) -> None:
    talk = Talk(desk)
    assert (await talk.ask("hello")).plan is None
    await desk.add("goats eat grass")
    assert told(await talk.ask("what do goats eat")) == ("begun", "first_turn")


async def test_a_request_that_cannot_be_framed_leaves_the_session_alone(desk: Desk) -> None:
    await desk.add("goats eat grass")
    talk = Talk(desk)
    await talk.ask("what do goats eat", LONG_TALK)

    async def unframed(notes: Mapping[int, str]) -> None:
        return None

    asked = SessionAsk(ALICE, "s", (*talk.said, Said("user", "goats?")), "auto")
    turn = await desk.sessions.turn(asked, unframed, lambda frame: ROOM)
    assert turn.plan is None and not turn.found.empty
    assert told(await talk.ask("goats eat"))[0] == "kept"


async def test_a_fact_deleted_while_a_turn_is_rendered_is_not_kept_by_the_session(desk: Desk) -> None:
    (goats,) = await desk.add("goats eat grass")
    talk = Talk(desk, said=[Said("user", "what do goats eat")])
    asked = SessionAsk(ALICE, "s", tuple(talk.said), "auto")

    async def frame_of(notes: Mapping[int, str]) -> Frame:
        if desk.memory.count(ALICE):
            await desk.memory.delete(ALICE, goats)
        return Frame(HEADER_IDS, (9,))

    await desk.sessions.turn(asked, frame_of, lambda frame: ROOM)
    assert desk.kept.of(ALICE, "s").block is None
