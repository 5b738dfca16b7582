"""Where a run keeps its finished rows, so that it can be broken off and continued.

A folder with `run.json`, which says what the rows depend on and what served each variant, and `rows.jsonl`, to which
rows are only added. A run with other settings is refused: rows of two settings must never be averaged.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from inferscale_server.bench.accuracy.row import Row, RowKey
from inferscale_server.errors import ConfigError

SETTINGS, ROWS = "run.json", "rows.jsonl"
MACHINE = "machine"
"""What is told of a variant and may differ between two runs."""
JUDGE = "judge"
"""The setting that a later run may add or leave out: verdicts come after the answers. Two judges are never mixed."""


class Ledger:
    """Finished rows, in memory and on the disk. One process at a time."""

    def __init__(self, folder: Path, settings: Mapping[str, object]) -> None:
        """Open or begin. Raises ConfigError when the folder holds rows of other settings, or is not one of ours."""
        self._folder = folder
        self._settings = dict(settings)
        self._variants: dict[str, Mapping[str, object]] = {}
        self._rows: dict[RowKey, Row] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / ROWS).touch()
        except OSError as error:
            raise ConfigError(f"option 'out': {folder} cannot be written: {error.strerror}") from error
        if (folder / SETTINGS).exists():
            self._resume()
        else:
            self._write_settings()

    @property
    def rows(self) -> Iterable[Row]:
        """All, in the order in which they were finished."""
        return self._rows.values()

    def __contains__(self, key: RowKey) -> bool:
        return key in self._rows

    def get(self, key: RowKey) -> Row | None:
        """One row, or None."""
        return self._rows.get(key)

    @property
    def settings(self) -> Mapping[str, object]:
        """What the rows depend on; the judge may be an earlier run's."""
        return self._settings

    @property
    def variants(self) -> Mapping[str, Mapping[str, object]]:
        """What served each variant."""
        return self._variants

    def whole(self, case: str, variant: str, k: int) -> bool:
        """Is there a kv row, and all that it is compared with?"""
        kv = self.get(RowKey(case, "kv", k, variant))
        return kv is not None and kv.off_key in self and kv.text_key in self

    def add(self, row: Row) -> None:
        """Keep a finished row."""
        self._rows[row.key] = row
        with (self._folder / ROWS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(row.to_json(), separators=(",", ":")) + "\n")

    def serves(self, variant: str, about: Mapping[str, object]) -> None:
        """Note what serves a variant. Raises ConfigError when its earlier rows are of something else."""
        known = self._variants.get(variant, {})
        for key in known.keys() & about.keys() - {MACHINE}:
            if known[key] != about[key]:
                raise ConfigError(
                    f"option 'out': {self._folder} holds rows of {variant!r} that were encoded otherwise: "
                    f"{key} was {known[key]!r} and is {about[key]!r}"
                )
        self._variants[variant] = dict(about)
        self._write_settings()

    def _resume(self) -> None:
        try:
            found = json.loads((self._folder / SETTINGS).read_text("utf-8"))
            self._variants = _variants(found)
            self._compare(found)
            self._write_settings()
            self._rows = {row.key: row for row in _framed(self._read())}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"option 'out': {self._folder} holds no run that can be continued: {error}") from error

    def _compare(self, found: Mapping[str, object]) -> None:
        """What an earlier version did not write was None then."""
        if JUDGE in self._settings and None in (self._settings[JUDGE], found.get(JUDGE)):
            self._settings[JUDGE] = self._settings[JUDGE] or found.get(JUDGE)
            found = {**found, JUDGE: self._settings[JUDGE]}
        differing = [key for key, value in self._settings.items() if found.get(key) != value]
        if differing:
            name = differing[0]
            raise ConfigError(
                f"option 'out': {self._folder} was made with {name} = {found.get(name)!r}, "
                f"not {self._settings[name]!r}: take another folder"
            )

    def _read(self) -> Sequence[Row]:
        """The rows; one that was broken off while being written, which only the last can be, is cut off."""
        file = self._folder / ROWS
        written = file.read_bytes() if file.exists() else b""
        whole = written[: written.rfind(b"\n") + 1]
        if whole != written:
            file.write_bytes(whole)
        return [Row.from_json(json.loads(line)) for line in whole.splitlines()]

    def _write_settings(self) -> None:
        """At once: a kill must not leave half a file, without which all rows are lost."""
        told = {**self._settings, "variants": self._variants}
        written = self._folder / f"{SETTINGS}.tmp"
        written.write_text(json.dumps(told, indent=1) + "\n", "utf-8")
        os.replace(written, self._folder / SETTINGS)


def _variants(found: Mapping[str, Any]) -> dict[str, Mapping[str, object]]:
    """An earlier version wrote each variant's fingerprint alone."""
    if "variants" in found:
        return {str(name): dict(about) for name, about in found["variants"].items()}
    return {str(name): {"fingerprint": fingerprint} for name, fingerprint in found["fingerprints"].items()}


def _framed(rows: Sequence[Row]) -> Iterator[Row]:
    """Kv rows of an earlier version do not name their off row: it is that of a variant with the very same prompt."""
    prompts = {(row.case, row.k, row.variant): row.digest for row in rows if row.mode == "kv"}
    off: dict[str, list[Row]] = {}
    for row in rows:
        if row.mode == "off":
            off.setdefault(row.case, []).append(row)
    for row in rows:
        alike = []
        if row.mode == "kv" and not row.frame_digest:
            alike = [of for of in off.get(row.case, ()) if prompts.get((row.case, row.k, of.variant)) == row.digest]
        yield replace(row, frame_digest=alike[0].digest) if alike else row
