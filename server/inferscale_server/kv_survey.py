"""What the files found at start are: a chunk that may be loaded, or a reason to remove them. Reads nothing itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from inferscale_server.kv_codec import KvIdentity
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
    """What this start can load: KV of this fingerprint, written by so many ranks, of texts that are known.

    `known`: each owner's marks, by `Owner.digest()`.
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
        identity = headers[0].identity
        fault = None
        if any(header.identity.fingerprint != self.fingerprint for header in headers):
            fault = "fingerprint"
        elif sorted(header.layout.rank for header in headers) != list(range(self.world)) or any(
            header.layout.world != self.world for header in headers
        ):
            fault = "ranks"
        elif any(header.identity != identity for header in headers):
            fault = "identity"
        elif self._orphaned(identity):
            fault = "orphan"
        size_bytes = sum(file.size for file in files)
        stored = None if fault is not None else StoredChunk(files[0].stem, identity, size_bytes)
        return Surveyed(tuple(files), stored, fault)

    def _orphaned(self, identity: KvIdentity) -> bool:
        """A delete or an update that a crash cut short leaves files of a text that no fact has."""
        if identity.kind == "header":
            return False
        marks = self.known.get(identity.owner)
        if marks is None or (identity.kind == "fact" and marks.get(identity.name) != identity.mark):
            return True
        return any(marks.get(seen.fact_id) != seen.mark for seen in identity.behind)
