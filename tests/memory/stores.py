"""A fact store with something in it, for tests that look at it from outside."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from inferscale_server.facts import FactStore
from inferscale_server.types import FactDraft, Owner
from tests.memory.fakes import FakeEmbedder

ALICE = Owner("local", "alice")
EMBEDDER = FakeEmbedder()


def remember(store: FactStore, *texts: str, owner: Owner = ALICE) -> list[str]:
    """Add facts; returns their ids."""
    outcomes = store.add(owner, [FactDraft(text) for text in texts], EMBEDDER.embed(texts))
    return [outcome.id for outcome in outcomes if outcome.id is not None]


def filled(path: Path, *texts: str) -> Path:
    """A closed store at `path` that holds these facts of Alice's."""
    with closing(FactStore(path)) as store:
        store.claim_embedder(EMBEDDER.name, EMBEDDER.dimension)
        remember(store, *texts)
    return path


def texts_in(path: Path, owner: Owner = ALICE) -> list[str]:
    """What a server would find there, oldest first."""
    with closing(FactStore(path)) as store:
        return [fact.text for fact in store.oldest(owner, 100_000)]


def damage(path: Path) -> None:
    """Overwrite the beginning of every page but the first."""
    content = bytearray(path.read_bytes())
    for offset in range(4096, len(content), 4096):
        content[offset : offset + 64] = b"\xff" * 64
    path.write_bytes(content)
