"""Whatever happens to facts, slab and conversation between two turns: what every turn of a session holds to."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random

import pytest

from inferscale_server.session_notes import Said
from inferscale_server.session_recall import SessionTurn
from inferscale_server.types import FactChange

from .builders import ALICE
from .test_session_recall import LONG_TALK, Desk, Talk, desk

__all__ = ["desk"]

SUBJECTS = ("goats", "trains", "ships", "clocks", "pears", "bells")
STEPS = 60


@dataclass
class Story:
    """One user's facts and conversations, changed at random. Every wording of a fact has a word of its own."""

    desk: Desk
    random: Random
    words: dict[str, str] = field(default_factory=dict)  # fact id -> the word of its present wording
    gone: set[str] = field(default_factory=set)
    talks: list[Talk] = field(default_factory=list)
    number: int = 0

    def text(self) -> tuple[str, str]:
        """A new fact's text, and the word that is in no other."""
        self.number += 1
        word = f"mark{self.number}"
        return f"{self.random.choice(SUBJECTS)} like {self.random.choice(SUBJECTS)} {word}", word

    async def add(self) -> None:
        text, word = self.text()
        (fact_id,) = await self.desk.add(text)
        self.words[fact_id] = word

    async def update(self) -> None:
        if self.words:
            fact_id = self.random.choice(sorted(self.words))
            text, word = self.text()
            await self.desk.memory.update(ALICE, fact_id, FactChange(text=text))
            self.gone.add(self.words[fact_id])
            self.words[fact_id] = word

    async def delete(self) -> None:
        if self.words:
            fact_id = self.random.choice(sorted(self.words))
            await self.desk.memory.delete(ALICE, fact_id)
            self.gone.add(self.words.pop(fact_id))

    async def forget_all(self) -> None:
        await self.desk.memory.delete_owner(ALICE)
        self.gone |= set(self.words.values())
        self.words.clear()

    async def encode(self) -> None:
        await self.desk.encoder.drain()

    async def cool(self) -> None:
        await self.desk.cool()

    async def branch(self) -> None:
        """A client goes back, or copies a conversation, under the same session."""
        if self.talks:
            old = self.random.choice(self.talks)
            kept = self.random.randrange(len(old.said) + 1) // 2 * 2
            self.talks.append(replace(old, said=old.said[:kept]))

    async def ask(self) -> None:
        if len(self.talks) < 2 or self.random.random() < 0.1:
            self.talks.append(Talk(self.desk, session=self.random.choice("st")))
        talk = self.random.choice(self.talks)
        question = " ".join(self.random.choices(SUBJECTS, k=2))
        answer = self.random.choice(("I see", LONG_TALK))
        mode = self.random.choice(("auto", "auto", "kv", "text"))
        context = tuple(self.random.choices(("the sky is blue", "rain is wet"), k=self.random.choice((0, 0, 1))))
        before = list(talk.said)
        turn = await talk.ask(question, answer, mode=mode, context=context)
        self.check(turn, [*before, Said("user", question)])

    def check(self, turn: SessionTurn, said: list[Said]) -> None:
        """What holds for every turn."""
        plan = turn.plan
        if plan is None:
            assert turn.found.empty
            return
        names = [line.name for line in turn.shown if line.name is not None]
        assert len(names) == len(set(names)), "a fact stands in the prompt twice"
        assert set(names) <= set(self.words), "a fact that is gone is told of"
        seen, token_of = set(plan.prompt_ids), self.desk.tokenize
        assert seen.isdisjoint(token_of(" ".join(self.gone))), "an old wording is in the prompt"
        assert seen.issuperset(token_of(" ".join(self.words[name] for name in names))), "what is told of is missing"
        spoken = self.desk.tokenize(" ".join(one.text for one in said))
        assert set(spoken) <= seen, "something that was said is missing"
        if plan.injection is not None:
            injected = plan.injection.token_ids
            assert plan.prompt_ids[: len(injected)] == injected and len(injected) < len(plan.prompt_ids)


@pytest.mark.parametrize("seed", range(4))
async def test_no_turn_shows_what_is_gone_or_anything_twice(desk: Desk, seed: int) -> None:
    story = Story(desk, Random(seed))
    steps = (story.add, story.ask, story.update, story.delete, story.encode, story.cool, story.branch, story.forget_all)
    for step in story.random.choices(steps, weights=(6, 14, 2, 2, 4, 2, 2, 0.3), k=STEPS):
        await step()
    assert story.number and story.talks
