"""Where a run keeps its finished rows, so that it can be broken off and continued.

A folder with `run.json`, which says what the rows depend on, and `rows.jsonl`, to which rows are only added. A run with
other settings is refused: rows of two settings must never be averaged.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from inferscale_server.bench.accuracy.row import Row, RowKey
from inferscale_server.errors import ConfigError

SETTINGS, ROWS = "run.json", "rows.jsonl"


class Ledger:
    """Finished rows, in memory and on the disk. One process at a time."""

    def __init__(self, folder: Path, settings: Mapping[str, object]) -> None:
        """Open or begin. Raises ConfigError when the folder holds rows of other settings, or is not one of ours."""
        self._folder = folder
        self._settings: dict[str, object] = {"fingerprints": {}, **settings}
        self._rows: dict[RowKey, Row] = {}
        folder.mkdir(parents=True, exist_ok=True)
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

    def text_of(self, kv: Row) -> Row | None:
        """Text over the very same prompt as a kv row."""
        return self.get(RowKey(kv.case, "text", kv.k, kv.digest))

    def add(self, row: Row) -> None:
        """Keep a finished row."""
        self._rows[row.key] = row
        with (self._folder / ROWS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(row.to_json(), separators=(",", ":")) + "\n")

    def serves(self, variant: str, fingerprint: str) -> None:
        """Note what a variant's chunks are. Raises ConfigError when its earlier rows were of other chunks."""
        known = self._settings["fingerprints"]
        assert isinstance(known, dict)
        if known.setdefault(variant, fingerprint) != fingerprint:
            raise ConfigError(f"option 'out': {self._folder} holds rows of {variant!r} that were encoded otherwise")
        self._write_settings()

    def _resume(self) -> None:
        try:
            found = json.loads((self._folder / SETTINGS).read_text("utf-8"))
            if differing := [
                key for key, value in self._settings.items() if key != "fingerprints" and found[key] != value
            ]:
                name = differing[0]
                raise ConfigError(
                    f"option 'out': {self._folder} was made with {name} = {found[name]!r}, "
                    f"not {self._settings[name]!r}: take another folder"
                )
            self._settings["fingerprints"] = dict(found["fingerprints"])
            self._rows = {row.key: row for row in self._read()}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"option 'out': {self._folder} holds no run that can be continued: {error}") from error

    def _read(self) -> Iterable[Row]:
        """The rows; one that was broken off while being written, which only the last can be, is cut off."""
        file = self._folder / ROWS
        written = file.read_bytes() if file.exists() else b""
        whole = written[: written.rfind(b"\n") + 1]
        if whole != written:
            file.write_bytes(whole)
        return [Row.from_json(json.loads(line)) for line in whole.splitlines()]

    def _write_settings(self) -> None:
        (self._folder / SETTINGS).write_text(json.dumps(self._settings, indent=1) + "\n", "utf-8")
