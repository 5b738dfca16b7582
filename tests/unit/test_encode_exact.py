"""Whatever is added, edited and deleted in whichever order: no chunk has seen a text that is gone, and each holds what
computing its whole prefix as text gives. The slow twin: a row is the digest of all tokens up to it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

import pytest

from inferscale_server.catalog import Chunk
from inferscale_server.command import Command, rows_of
from inferscale_server.recipe import RecipeSizes, make_recipe
from inferscale_server.types import Fact, Owner

from .builders import ALICE
from .engines import HEADER_IDS, FakeEngine, World, world
from .test_encode_recipes import directions, sentences

RECIPES = (
    "primer", "session", "window", "neighbours", "header", "isolated", "primer+session", "primer+window",
    "primer+neighbours", "window+session", "primer+session+window+neighbours",
)  # fmt: skip
FACTS, STEPS = 40, 30


def prefixes(token_ids: Sequence[int]) -> list[int]:
    """For each token the digest of all up to it: what it is in a model that sees all before it."""
    return list(accumulate(token_ids, lambda before, token: hash((before, token)), initial=0))[1:]


@dataclass
class SeeingEngine(FakeEngine):
    """Keeps what each row has seen; an injected row must have seen what stands before it in this prompt."""

    seen: dict[int, int] = field(default_factory=dict)

    async def encode(self, prompt_ids: Sequence[int], command: Command, adapter: str = "") -> None:
        computed = prefixes(prompt_ids)
        if command.injection is not None:
            injected = [self.seen[row] for row in rows_of(command.injection.extents)]
            assert injected == computed[: len(injected)], "injected rows have seen other texts than this prompt's"
        await super().encode(prompt_ids, command, adapter)
        for capture in command.captures:
            self.seen |= dict(zip(rows_of(capture.extents), computed[capture.start :], strict=False))


class Life:
    """One owner's facts over time."""

    def __init__(self, name: str, seed: int) -> None:
        self.random = random.Random(seed)
        self.facts: dict[Owner, list[Fact]] = {ALICE: []}
        sizes = RecipeSizes(1 + seed % 6, 1 + seed % 5, 1 + seed % 4, self.random.choice(["medoids", "oldest"]))
        self.recipe = make_recipe(name, sizes)
        self.here: World = world(
            rows=self.random.choice([400, 100_000]),
            recipe=self.recipe,
            max_model_len=self.random.choice([400, 20_000]),
            facts=self.facts,
            vectors_of=lambda owner: directions(self.facts[owner]),
            kind=SeeingEngine,
            most=self.random.choice([None, 30]),
        )
        self.coming = sentences(FACTS, session_size=self.random.choice([1, 4, 10]))
        self.gone: set[str] = set()

    def change(self) -> None:
        """Add some, edit one or delete one."""
        live, what = self.facts[ALICE], self.random.random()
        if what < 0.5 and self.coming:
            some = [self.coming.pop(0) for _ in range(min(self.random.choice([1, 1, 5, 12]), len(self.coming)))]
            self.here.add(*some)
        elif what < 0.7 and live:
            place = self.random.randrange(len(live))
            live[place] = replace(live[place], text=f"{live[place].text} e{self.random.random()}")
            self.here.encoder.forgotten(ALICE, (live[place].id,))
            self.check_nobody_saw({live[place].id})
            self.here.encoder.added(ALICE, (live[place],))
        elif live:
            deleted = self.random.choice(live)
            self.gone.add(deleted.id)
            self.here.delete(deleted)
            self.check_nobody_saw(self.gone)

    async def encode_a_while(self) -> None:
        """Work, with a change in the middle of it."""
        work = asyncio.create_task(self.here.encoder.drain())
        for _ in range(self.random.randrange(30)):
            await asyncio.sleep(0)
        self.change()
        await work

    def check_nobody_saw(self, gone: set[str]) -> None:
        for chunk in self.here.catalog.of(ALICE):
            assert chunk.key.name not in gone and gone.isdisjoint(chunk.behind)

    def check_rows(self) -> int:
        """Each chunk's rows against its prefix as text; returns how many chunks there are."""
        chunks = [(each, chunk) for each in self.facts[ALICE] if (chunk := self.here.chunk(each)) is not None]
        for each, chunk in chunks:
            line, before = self.here.encoder.job_of(each).token_ids, self._before(chunk)
            seen = [self.here.engine.seen[row] for row in rows_of(chunk.extents)]  # type: ignore[attr-defined]
            assert chunk.token_ids == line and seen == prefixes((*before, *line))[len(before) :]
        return len(chunks)

    def _before(self, chunk: Chunk) -> tuple[int, ...]:
        live = {each.id: each for each in self.facts[ALICE]}
        lines = (self.here.encoder.job_of(live[fact_id]).token_ids for fact_id in chunk.behind)
        return sum(lines, HEADER_IDS if self.recipe.header else ())


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("seed", range(3))
async def test_each_chunk_is_what_its_prefix_as_text_gives_and_none_has_seen_what_is_gone(name: str, seed: int) -> None:
    life = Life(name, seed)
    for _ in range(STEPS):
        life.change()
        if life.random.random() < 0.4:
            await life.encode_a_while()
            life.check_nobody_saw(life.gone)
    await life.here.encoder.drain()
    life.check_nobody_saw(life.gone)
    encoded, alive = life.check_rows(), len(life.facts[ALICE])
    assert encoded == alive or (encoded > 0 and life.here.catalog.rows == 400)
