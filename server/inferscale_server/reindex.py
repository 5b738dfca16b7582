"""The verb reindex: all facts embedded by another embedder, while the old vectors stay in use until the end.

The new vectors gather in a table beside the facts, a committed batch at a time, so a killed run is continued by the
next one. One transaction puts them into place together with the embedder's name. Facts that are deleted or rewritten
meanwhile lose their new vector by trigger, so neither a deleted fact's vector nor a stale one can be switched to.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from inferscale_server.database import Database
from inferscale_server.embed import Embedder
from inferscale_server.errors import Unavailable
from inferscale_server.fact_rows import owner_vectors
from inferscale_server.facts import FactStore
from inferscale_server.index import VectorIndex
from inferscale_server.known import FactBook, KnownFacts
from inferscale_server.pieces import cut_all
from inferscale_server.types import Owner
from inferscale_server.vectors import checked

BATCH = 64
"""Facts between two commits."""

Tell = Callable[[int, int], None]
"""Told how many facts are done, and how many there are."""


@dataclass(frozen=True, slots=True, eq=False)
class Rebuilt:
    """A new index and what was put into it."""

    index: VectorIndex
    ids: dict[Owner, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A fact that has no new vector yet."""

    seq: int
    id: str
    text: str


def reindex(store: FactStore, embedder: Embedder, tell: Tell) -> int:
    """Embed all facts with `embedder` and switch the store to it; returns how many facts there are.

    Continues an earlier run with the same embedder. Raises Unavailable or StorageFull; what is done until then stays,
    and the old vectors stay in use. For a store that nobody else is writing to; a server uses the two steps.
    """
    prepare(store, embedder, tell)
    return switch(store, embedder)


def prepare(store: FactStore, embedder: Embedder, tell: Tell) -> None:
    """Embed all facts there are, beside the vectors in use. May run in any thread, beside reads and writes."""
    database = store.database
    _claim(database, embedder)
    tell(*_progress(database))
    after_seq = 0
    while waiting := _waiting(database, after_seq):
        _keep(database, embedder, waiting)
        after_seq = waiting[-1].seq
        tell(*_progress(database))


def switch(store: FactStore, embedder: Embedder) -> int:
    """Embed what came in since `prepare`, then switch in one transaction; returns how many facts there are.

    Nothing may add or rewrite facts meanwhile.
    """
    database = store.database
    _prepare_rest(database, embedder)
    try:
        with database.transaction() as connection:
            _put_into_place(connection, embedder)
    except Unavailable:
        with database.reading() as connection:  # a commit that was reported as failed may be done all the same
            if connection.execute("SELECT 1 FROM embedder_next").fetchone() is not None:
                raise
    with database.reading() as connection:
        return int(connection.execute("SELECT count(*) FROM facts").fetchone()[0])


def _put_into_place(connection: sqlite3.Connection, embedder: Embedder) -> None:
    missing = connection.execute(f"SELECT count(*) FROM facts WHERE {_IS_MISSING}").fetchone()[0]
    assert missing == 0, f"{missing} facts came in during the switch"
    connection.execute(
        "UPDATE facts SET embedding = next.embedding FROM embeddings_next AS next WHERE next.id = facts.id"
    )
    connection.execute(
        "INSERT INTO embedder VALUES (1, ?1, ?2) ON CONFLICT (only_row) DO UPDATE SET name = ?1, dimension = ?2",
        (embedder.name, embedder.dimension),
    )
    connection.execute("DELETE FROM embeddings_next")
    connection.execute("DELETE FROM embedder_next")


def rebuild(store: FactStore, embedder: Embedder, index: VectorIndex) -> Rebuilt:
    """Embed what came in since `prepare` and fill an empty index with what `switch` will put into place.

    In the writer thread, before `switch`: an index that cannot be made then leaves the old vectors in use.
    """
    _prepare_rest(store.database, embedder)
    rebuilt = Rebuilt(index)
    for owner in store.owners():
        with store.database.reading() as connection:
            rows = connection.execute(_NEXT_OF_OWNER, (owner.tenant, owner.user)).fetchall()
        if rows:
            vectors = owner_vectors(owner, rows, embedder.dimension)
            index.add(owner, vectors.fact_ids, vectors.matrix)
            rebuilt.ids[owner] = vectors.fact_ids
    return rebuilt


def catch_up(known: KnownFacts, rebuilt: Rebuilt, book: FactBook) -> None:
    """Once the rebuilt index is in use: deletes until then went to the old one. In the writer thread."""
    known.lead(book)
    for owner, fact_ids in rebuilt.ids.items():
        rebuilt.index.remove(owner, [fact_id for fact_id in fact_ids if known.get(owner, fact_id) is None])


_IS_MISSING = "id NOT IN (SELECT id FROM embeddings_next)"
_NEXT_OF_OWNER = (
    "SELECT id, next.embedding FROM facts JOIN embeddings_next AS next USING (id) "
    "WHERE tenant = ? AND user = ? ORDER BY seq"
)


def _prepare_rest(database: Database, embedder: Embedder) -> None:
    _claim(database, embedder)
    while waiting := _waiting(database):
        _keep(database, embedder, waiting)


def _claim(database: Database, embedder: Embedder) -> None:
    """Whatever another embedder has left behind is of no use."""
    with database.transaction() as connection:
        row = connection.execute("SELECT name, dimension FROM embedder_next").fetchone()
        if row != (embedder.name, embedder.dimension):
            connection.execute("DELETE FROM embeddings_next")
            values = (embedder.name, embedder.dimension)
            connection.execute("INSERT OR REPLACE INTO embedder_next VALUES (1, ?, ?)", values)


def _waiting(database: Database, after_seq: int = 0) -> list[_Waiting]:
    query = f"SELECT seq, id, text FROM facts WHERE seq > ? AND {_IS_MISSING} ORDER BY seq LIMIT {BATCH}"
    with database.reading() as connection:
        return [_Waiting(*row) for row in connection.execute(query, (after_seq,)).fetchall()]


def _keep(database: Database, embedder: Embedder, facts: list[_Waiting]) -> None:
    """Embed and commit one batch; a fact that was deleted or rewritten while it was embedded is left out.

    Raises Unavailable, with nothing of the batch kept, for a vector that is not finite or not of length 1.
    """
    pieces = cut_all((fact.text for fact in facts), embedder.pieces)
    made = np.concatenate([embedder.embed(pieces.texts[i : i + BATCH]) for i in _starts(pieces.texts)])
    vectors = pieces.group(checked(made, len(pieces.texts), embedder.dimension))
    rows = [(matrix.astype("<f4").tobytes(), fact.id, fact.text) for fact, matrix in zip(facts, vectors, strict=True)]
    with database.transaction() as connection:
        connection.executemany(
            "INSERT OR REPLACE INTO embeddings_next SELECT id, ? FROM facts WHERE id = ? AND text = ?", rows
        )


def _starts(texts: tuple[str, ...]) -> range:
    return range(0, len(texts), BATCH)


def _progress(database: Database) -> tuple[int, int]:
    with database.reading() as connection:
        done = connection.execute("SELECT count(*) FROM embeddings_next").fetchone()[0]
        return int(done), int(connection.execute("SELECT count(*) FROM facts").fetchone()[0])
