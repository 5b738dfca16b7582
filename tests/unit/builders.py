"""Small values for tests: owners, facts, chunks, extents."""

from __future__ import annotations

from collections.abc import Sequence

from inferscale_server.catalog import Catalog, Chunk, ChunkKey, ChunkKind
from inferscale_server.command import Extent
from inferscale_server.types import Fact, Owner

ALICE = Owner("local", "alice")
BOB = Owner("local", "bob")
SECRET = b"a secret of thirty-two bytes len"


def fact(number: int, text: str | None = None, owner: Owner = ALICE) -> Fact:
    """Fact number `number` of an owner, with a text of three words."""
    text = f"{owner.user} note {number}" if text is None else text
    return Fact(f"{owner.user}-{number}", owner, number, text, None, None, None, {}, 0.0)


def extents(*pieces: tuple[int, int]) -> tuple[Extent, ...]:
    """Extents from (row, length) pairs."""
    return tuple(Extent(row, length) for row, length in pieces)


def store(
    catalog: Catalog,
    name: str,
    tokens: int | Sequence[int] = 3,
    kind: ChunkKind = "fact",
    owner: Owner = ALICE,
    behind: tuple[str, ...] = (),
) -> Chunk:
    """A chunk that is committed to the catalog, in rows that others made room with if need be."""
    token_ids = tuple(range(tokens)) if isinstance(tokens, int) else tuple(tokens)
    if catalog.rows - catalog.rows_used < len(token_ids):
        catalog.make_room(len(token_ids))
        catalog.wiped(catalog.unwiped)
    chunk = catalog.reserve(ChunkKey(kind, owner, name), token_ids, behind)
    assert chunk is not None, "the catalog of this test is too small"
    catalog.commit(chunk)
    return chunk
