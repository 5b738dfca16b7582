"""Looks a data folder over: is what lies there what a server would have put there?

Knows: what must hold between the tables, and of a vector. Refuses to know: how to mend it. Says nothing of anybody's
words: names of checks and numbers of rows alone.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from inferscale_server.database import MIGRATIONS, inspect
from inferscale_server.errors import RequestError, StartupError
from inferscale_server.moments import EARLIEST, LATEST
from inferscale_server.orphans import kv_files, look_over
from inferscale_server.outcomes import FORGOTTEN
from inferscale_server.reserve import reserve_of
from inferscale_server.snapshot import Tell, quiet, snapshot
from inferscale_server.types import Owner

UNIT_TOLERANCE = 1e-3
ROWS_AT_A_TIME = 512
MAX_COMPLAINTS = 20
"""How many of SQLite's complaints are asked for; one is shown, the others are counted."""

GONE = "NOT EXISTS (SELECT 1 FROM facts WHERE facts.id = fact_id)"
ENDS = "'deleted', 'expired', 'superseded'"
LAST_EVENT = (
    "(SELECT event FROM history AS later WHERE later.owner_digest = history.owner_digest "
    "AND later.fact_id = history.fact_id ORDER BY number DESC LIMIT 1)"
)
"""SQL about a row of `history`: is its fact no more, which events end a fact, and which was the fact's last."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. `found` says what there is; `reason` is None when that is as it should be."""

    name: str
    found: str
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """All findings, in the order in which they were made."""

    findings: tuple[Finding, ...] = field(default_factory=tuple)

    @property
    def broken(self) -> tuple[Finding, ...]:
        """The findings that have a reason to worry."""
        return tuple(finding for finding in self.findings if finding.reason is not None)


Check = Callable[[sqlite3.Connection, Tell], Finding]


def verify(store: Path, kv: Path | None = None, tell: Tell = quiet) -> Verdict:
    """Check the fact store at `store`, as it is now, beside whoever writes it, and the KV files in the folder `kv`.

    Never raises for what it finds. A file that cannot be read ends the checks with the one finding that says so.
    """
    findings: list[Finding] = []
    files = () if kv is None else kv_files(kv)
    try:
        inspect(store)
        with snapshot(store) as seen:
            findings.append(check_file(seen, quiet) if _whole(store, kv) else _emptied(store))
            if not findings[0].reason:
                schema = _one(seen, "PRAGMA user_version")
                findings += [check(seen, tell) for since in CHECKS if since <= schema for check in CHECKS[since]]
                findings += [check_kv(seen, files)] if kv else []
    except (StartupError, RequestError, OSError, sqlite3.Error) as error:
        findings.append(Finding("file", store.name, " ".join(str(error).split())))
    return Verdict(tuple(findings))


def _whole(store: Path, kv: Path | None) -> bool:
    """Not one of zero bytes where a server has been: it makes the store first, then its reserve and KV's folder."""
    used = reserve_of(store).exists() or (kv is not None and kv.exists())
    return store.stat().st_size > 0 or not used


def _emptied(store: Path) -> Finding:
    return Finding("file", f"{store.name}, 0 bytes", "is empty or damaged: a server has kept facts in this folder")


def check_file(seen: sqlite3.Connection, tell: Tell) -> Finding:
    """SQLite's own full check of pages, indices and constraints, and the schema's number."""
    complaints = [row[0] for row in seen.execute(f"PRAGMA integrity_check({MAX_COMPLAINTS})")]
    complaints += [f"a row of {row[0]} refers to nothing" for row in seen.execute("PRAGMA foreign_key_check")]
    complaints = [complaint for complaint in complaints if complaint != "ok"]
    version = _one(seen, "PRAGMA user_version")
    found = f"schema {version}, {_one(seen, 'PRAGMA page_count') * _one(seen, 'PRAGMA page_size')} bytes"
    if version > len(MIGRATIONS):
        return Finding("file", found, f"newer than this InferScale's schema {len(MIGRATIONS)}")
    if complaints:
        more = f" (and {len(complaints) - 1} more)" if complaints[1:] else ""
        return Finding("file", found, " ".join(complaints[0].split())[:200] + more)
    return Finding("file", found)


def check_facts(seen: sqlite3.Connection, tell: Tell) -> Finding:
    """No fact twice, none without words, none with metadata that is no JSON object."""
    twice = _one(
        seen,
        "SELECT count(*) FROM (SELECT 1 FROM facts GROUP BY tenant, user, sameness HAVING count(*) > 1 "
        "UNION ALL SELECT 1 FROM facts GROUP BY id HAVING count(*) > 1)",
    )
    mute = _one(seen, "SELECT count(*) FROM facts WHERE trim(text) = '' OR id = '' OR user = ''")
    torn = _one(
        seen,
        "SELECT count(*) FROM facts WHERE "
        "CASE WHEN json_valid(metadata) THEN json_type(metadata) <> 'object' ELSE 1 END",
    )
    owners = _one(seen, "SELECT count(*) FROM (SELECT DISTINCT tenant, user FROM facts)")
    found = f"{_one(seen, 'SELECT count(*) FROM facts')} of {owners} users"
    return _counted(
        "facts", found, {"stand twice": twice, "have no text or id": mute, "have metadata that is no object": torn}
    )


def check_embeddings(seen: sqlite3.Connection, tell: Tell) -> Finding:
    """Every vector is of the recorded dimension, finite and of length 1; a long fact may have several."""
    recorded = seen.execute("SELECT name, dimension FROM embedder").fetchone()
    total = _one(seen, "SELECT count(*) FROM facts")
    if recorded is None:
        reason = "no embedder is recorded" if total else None
        return Finding("embeddings", "none", reason)
    uneven = bent = done = 0
    for rows in _batches(seen, "SELECT embedding FROM facts ORDER BY seq"):
        right = [row[0] for row in rows if row[0] and len(row[0]) % (4 * recorded[1]) == 0]
        uneven += len(rows) - len(right)
        bent += sum(not _is_unit(raw, recorded[1]) for raw in right)
        done += len(rows)
        tell(done, total)
    found = f"{total} by {recorded[0]} ({recorded[1]} dimensions)"
    return _counted("embeddings", found, {"have another dimension": uneven, "are not of length 1": bent})


def check_epochs(seen: sqlite3.Connection, tell: Tell) -> Finding:
    """Epochs count from 1 and are kept by digest, so that no user id outlives the user's last fact."""
    wrong = _one(
        seen,
        "SELECT count(*) FROM epochs WHERE epoch < 1 OR length(owner_digest) <> 64 OR owner_digest GLOB '*[^0-9a-f]*'",
    )
    found = f"{_one(seen, 'SELECT count(*) FROM epochs')} users deleted something"
    return _counted("epochs", found, {"are not an epoch of a digest": wrong})


def check_history(seen: sqlite3.Connection, tell: Tell) -> Finding:
    """What is known of facts that are no more is that they existed and ended, not what they said.

    Another owner's fact may have the id of one that has ended: an export of a deleted user, imported for another.
    """
    talks = _one(
        seen,
        "SELECT count(*) FROM history WHERE (text IS NOT NULL OR metadata IS NOT NULL) "
        f"AND {LAST_EVENT} <> 'superseded' AND {GONE}",
    )
    ends = f"max(CASE WHEN event IN ({ENDS}) THEN number ELSE 0 END)"
    open_ = _one(
        seen,
        f"SELECT count(*) FROM (SELECT 1 FROM history WHERE {GONE} GROUP BY owner_digest, fact_id "
        f"HAVING {ends} < max(number))",
    )
    seen.create_function("owner_digest", 2, lambda tenant, user: Owner(tenant, user).digest(), deterministic=True)
    others = _one(
        seen,
        "SELECT count(*) FROM history JOIN facts ON facts.id = fact_id "
        f"WHERE history.owner_digest <> owner_digest(tenant, user) AND {LAST_EVENT} NOT IN ({ENDS})",
    )
    found = f"{_one(seen, 'SELECT count(*) FROM history')} events"
    faults = {"say what a deleted fact said": talks, "facts went without a word": open_, "are of another owner": others}
    return _counted("history", found, faults)


def check_times(seen: sqlite3.Connection, tell: Tell) -> Finding:
    """Every moment lies in the calendar that moments are shown in."""
    columns = ("occurred_at", "expires_at", "created_at", "updated_at")
    beyond = " OR ".join(f"{column} NOT BETWEEN {EARLIEST} AND {LATEST}" for column in columns)
    wrong = _one(seen, f"SELECT count(*) FROM facts WHERE {beyond}")
    found = f"{_one(seen, 'SELECT count(*) FROM facts WHERE occurred_at IS NOT NULL')} facts with a time"
    return _counted("times", found, {"have a time beyond the years 1 to 9999": wrong})


def check_voices(seen: sqlite3.Connection, tell: Tell) -> Finding:
    """Of facts that are no more it is not known either who said them, when and where; superseded ones keep it."""
    named = "(speaker IS NOT NULL OR occurred_at IS NOT NULL OR session_id IS NOT NULL)"
    talks = _one(seen, f"SELECT count(*) FROM history WHERE {named} AND {LAST_EVENT} <> 'superseded' AND {GONE}")
    found = f"{_one(seen, f'SELECT count(*) FROM history WHERE {named}')} events with speaker, time or session"
    return _counted("voices", found, {"say who said a deleted fact": talks})


def check_usage(seen: sqlite3.Connection, tell: Tell) -> Finding:
    """The counters that quotas are checked against say what a count says."""
    counted = (
        "SELECT tenant, user, count(*), sum(length(CAST(text AS BLOB)) + length(CAST(metadata AS BLOB))) FROM facts "
        "GROUP BY tenant, user"
    )
    kept = "SELECT tenant, user, facts, bytes FROM usage"
    wrong = _one(
        seen,
        f"SELECT count(*) FROM (SELECT * FROM ({counted} EXCEPT {kept}) "
        f"UNION ALL SELECT * FROM ({kept} EXCEPT {counted}))",
    )
    return _counted("usage", f"{_one(seen, 'SELECT count(*) FROM usage')} users", {"differ from a count": wrong})


def check_history_usage(seen: sqlite3.Connection, tell: Tell) -> Finding:
    """The counter that bounds what facts said before says what a count says."""
    counted = (
        "SELECT owner_digest, sum(length(CAST(text AS BLOB)) + ifnull(length(CAST(metadata AS BLOB)), 0)) FROM history "
        "WHERE text IS NOT NULL GROUP BY owner_digest"
    )
    kept = "SELECT owner_digest, bytes FROM history_usage"
    both = f"SELECT * FROM ({counted} EXCEPT {kept}) UNION ALL SELECT * FROM ({kept} EXCEPT {counted})"
    wrong = _one(seen, f"SELECT count(*) FROM ({both})")
    found = f"{_one(seen, 'SELECT ifnull(sum(bytes), 0) FROM history_usage')} bytes"
    return _counted("history_usage", found, {"differ from a count": wrong})


def check_idempotency(seen: sqlite3.Connection, tell: Tell) -> Finding:
    """Kept answers are lists of ids and statuses; of a forgotten owner's is known that there were some, and no more."""
    torn = _one(
        seen,
        "SELECT count(*) FROM idempotency WHERE length(owner_digest) <> 64 OR CASE "
        f"WHEN outcomes = '{FORGOTTEN}' THEN body_digest <> '' "
        "WHEN json_valid(outcomes) THEN json_type(outcomes) <> 'array' ELSE 1 END",
    )
    return _counted(
        "idempotency", f"{_one(seen, 'SELECT count(*) FROM idempotency')} answers", {"are not a list of outcomes": torn}
    )


def check_next(seen: sqlite3.Connection, tell: Tell) -> Finding:
    """What a reindexing has made so far is of facts that are there."""
    gone = _one(seen, "SELECT count(*) FROM embeddings_next WHERE id NOT IN (SELECT id FROM facts)")
    found = f"{_one(seen, 'SELECT count(*) FROM embeddings_next')} new embeddings"
    return _counted("reindex", found, {"are of facts that are no more": gone})


def check_kv(seen: sqlite3.Connection, files: tuple[Path, ...]) -> Finding:
    """Every KV file checks out, and none is of a fact that is no more."""
    found = look_over(files, seen)
    faults = {"do not check out": len(found.faulty), "are of facts that are no more": len(found.orphans)}
    return _counted("kv", f"{found.files} files, {found.bytes} bytes", faults)


CHECKS: Mapping[int, tuple[Check, ...]] = {
    1: (check_facts, check_embeddings, check_epochs),
    2: (check_history, check_usage, check_idempotency, check_times),
    3: (check_next,),
    4: (check_voices,),
    6: (check_history_usage,),
}
"""What is checked once the file itself is sound, by the schema that brought it: a backup may be of an older one."""


def show_verdict(verdict: Verdict) -> dict[str, object]:
    """JSON values: `{"ok", "checks": [{"name", "ok", "found", "reason"}]}`."""
    checks = [
        {"name": found.name, "ok": found.reason is None, "found": found.found, "reason": found.reason}
        for found in verdict.findings
    ]
    return {"ok": not verdict.broken, "checks": checks}


def _counted(name: str, found: str, faults: dict[str, int]) -> Finding:
    said = ", ".join(f"{number} {fault}" for fault, number in faults.items() if number)
    return Finding(name, found, said or None)


def _is_unit(raw: bytes, dimension: int) -> bool:
    rows = np.frombuffer(raw, dtype="<f4").reshape(-1, dimension).astype(np.float64)
    return bool(np.all(np.abs(np.linalg.norm(rows, axis=1) - 1.0) <= UNIT_TOLERANCE))  # NaN compares False


def _batches(seen: sqlite3.Connection, query: str) -> Iterator[list[tuple[bytes]]]:
    cursor = seen.execute(query)
    while rows := cursor.fetchmany(ROWS_AT_A_TIME):
        yield rows


def _one(seen: sqlite3.Connection, query: str) -> int:
    return int(seen.execute(query).fetchone()[0])
