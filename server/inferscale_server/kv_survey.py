"""What the files found at start are: a chunk that may stay, or a reason to remove them. Reads nothing itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from inferscale_server.kv_codec import KvHeader, KvIdentity
from inferscale_server.kv_files import FoundFile
from inferscale_server.kv_shelf import StoredChunk

Marks = Mapping[str, str]
"""Digest of each fact's line, by fact id."""


@dataclass(frozen=True, slots=True)
class Surveyed:
    """One chunk's files, of all ranks: `stored`, or `fault`, one word why not."""

    files: tuple[FoundFile, ...]
    stored: StoredChunk | None
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class Survey:
    """What may stay: KV of texts that are known, whole; of this fingerprint it was written by so many ranks.

    KV of another fingerprint is kept for a start that it is of, and never loaded by this one. `known`: each owner's
    marks, by `Owner.digest()`.
    """

    fingerprint: str
    world: int
    known: Mapping[str, Marks]

    def of(self, found: Iterable[FoundFile]) -> list[Surveyed]:
        """One verdict a chunk, those used longest ago first."""
        chunks: dict[str, list[FoundFile]] = {}
        for file in sorted(found, key=lambda file: file.used_at):
            chunks.setdefault(file.stem, []).append(file)
        return [self._judge(files) for files in chunks.values()]

    def _judge(self, files: Sequence[FoundFile]) -> Surveyed:
        for file in files:
            if file.header is None:
                return Surveyed(tuple(files), None, file.fault)
        headers = [file.header for file in files if file.header is not None]
        identity, ranks = headers[0].identity, headers[0].layout.world
        fault = None
        if any(header.identity != identity for header in headers):
            fault = "identity"
        elif not _complete(headers) or (identity.fingerprint == self.fingerprint and ranks != self.world):
            fault = "ranks"
        elif self._orphaned(identity):
            fault = "orphan"
        size_bytes = sum(file.size for file in files)
        stored = None if fault is not None else StoredChunk(files[0].stem, identity, size_bytes, ranks)
        return Surveyed(tuple(files), stored, fault)

    def _orphaned(self, identity: KvIdentity) -> bool:
        """A delete or an update that a crash cut short leaves files of a text that no fact has."""
        if identity.kind == "header":
            return False
        marks = self.known.get(identity.owner)
        if marks is None or (identity.kind == "fact" and marks.get(identity.name) != identity.mark):
            return True
        return any(marks.get(seen.fact_id) != seen.mark for seen in identity.behind)


def _complete(headers: Sequence[KvHeader]) -> bool:
    """Is there one file of each rank, all written by as many?"""
    world = headers[0].layout.world
    ranks = sorted(header.layout.rank for header in headers)
    return ranks == list(range(world)) and all(header.layout.world == world for header in headers)
