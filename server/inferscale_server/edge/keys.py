"""The file of API keys: one JSON object a line, in a file that only its owner can read.

Knows: the file's format, and that it holds hashes of keys, never keys. Refuses to know: requests.
A plain SHA-256 will do: slow hashes protect passwords, which can be guessed; a key is 256 random bits, which cannot.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from inferscale_server.edge.identity import ROLES, Identity, Role
from inferscale_server.errors import ConfigError, InvalidRequest
from inferscale_server.remember import parse_id

KEY_PREFIX = "isk_"
"""So that a key is recognised where it should not be: in a log or a repository."""
KEY_BYTES = 32
MAX_FILE_BYTES = 64 * 1024 * 1024

_FIELDS = frozenset({"id", "sha256", "tenant", "role", "users", "expires_at", "created_at"})
_REQUIRED = frozenset({"id", "sha256", "tenant", "role", "created_at"})
_HEX = frozenset("0123456789abcdef")


@dataclass(frozen=True, slots=True)
class ApiKey:
    """What is known of one key. `sha256` is 64 hex characters; times in Unix seconds, None: never expires.

    `users` is None when the key is for all of the tenant's users.
    """

    id: str
    sha256: str
    tenant: str
    role: Role
    users: tuple[str, ...] | None
    expires_at: float | None
    created_at: float

    def expired(self, now: float) -> bool:
        """Is the key past its time at `now`?"""
        return self.expires_at is not None and self.expires_at <= now

    def identity(self) -> Identity:
        """Whom a request with this key speaks for."""
        return Identity(self.tenant, self.role, None if self.users is None else frozenset(self.users), self.id)


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key that was just made. `secret` is shown once and stored nowhere."""

    secret: str
    key: ApiKey


def make_key(tenant: str, role: Role, users: Sequence[str], expires_at: float | None, now: float) -> NewKey:
    """A fresh random key; no `users` means all of the tenant's. Raises ConfigError for a bad tenant or user."""
    secret = KEY_PREFIX + secrets.token_urlsafe(KEY_BYTES)
    key = ApiKey(secrets.token_hex(6), hash_of(secret), tenant, role, tuple(users) or None, expires_at, now)
    try:
        return NewKey(secret, _parse(_shown(key)))
    except (InvalidRequest, ValueError) as error:
        raise ConfigError(str(error)) from None


def hash_of(secret: str) -> str:
    """SHA-256 of a presented key, 64 hex characters."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def read_keys(file: Path) -> tuple[ApiKey, ...]:
    """All keys in `file`, also expired ones. Raises ConfigError that names file and line and repeats no content."""
    try:
        with file.expanduser().open("rb") as source:
            _check_private(file, source.fileno())
            lines = source.read(MAX_FILE_BYTES).decode("utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"API keys file {file}: {_reason(error)}") from None
    keys = tuple(_parse_lines(file, lines))
    for name in ("id", "sha256"):
        seen = [getattr(key, name) for key in keys]
        if len(set(seen)) != len(seen):
            raise ConfigError(f"API keys file {file}: two keys have the same {name}")
    return keys


def change_keys(file: Path, change: Callable[[tuple[ApiKey, ...]], Iterable[ApiKey]]) -> None:
    """Replace the keys in `file` (made when missing) by `change(keys)`, in one atomic step, mode 0600.

    Two of these at once run one after the other. Raises ConfigError and whatever `change` raises; the file is then
    as it was.
    """
    file = file.expanduser()
    try:
        with _alone(file.parent):
            _write(file, change(read_keys(file) if file.exists() else ()))
    except OSError as error:
        raise ConfigError(f"API keys file {file}: {_reason(error)}") from None


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    # The folder is locked, not the file: the file is replaced, and a lock on the old one would hold nobody up.
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write(file: Path, keys: Iterable[ApiKey]) -> None:
    content = "".join(json.dumps(_shown(key), ensure_ascii=False) + "\n" for key in keys)
    fresh = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    try:
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as out:
            out.write(content)
            out.flush()
            os.fsync(out.fileno())
        fresh.replace(file)
    finally:
        fresh.unlink(missing_ok=True)


def _check_private(file: Path, descriptor: int) -> None:
    mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
    if mode & 0o077:
        raise ConfigError(f"API keys file {file}: others can read or change it (mode {mode:04o}): chmod 600 {file}")


def _parse_lines(file: Path, lines: Iterable[str]) -> Iterator[ApiKey]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield _parse(json.loads(line))
        except json.JSONDecodeError:
            raise ConfigError(f"API keys file {file}, line {number}: not JSON") from None
        except (InvalidRequest, ValueError, RecursionError) as error:
            raise ConfigError(f"API keys file {file}, line {number}: {error}") from None


def _parse(read: object) -> ApiKey:
    """Raises ValueError or InvalidRequest."""
    if not isinstance(read, Mapping):
        raise ValueError("not a JSON object")
    if read.keys() - _FIELDS or _REQUIRED - read.keys():
        wrong = sorted(read.keys() - _FIELDS) or sorted(_REQUIRED - read.keys())
        raise ValueError(f"{'unknown' if read.keys() - _FIELDS else 'no'} field {wrong[0]!r}")
    if read["role"] not in ROLES:
        raise ValueError(f"role must be one of {', '.join(ROLES)}")
    created, expires = _time(read["created_at"]), read.get("expires_at")
    return ApiKey(
        id=parse_id(read["id"], "id"),
        sha256=_digest(read["sha256"]),
        tenant=parse_id(read["tenant"], "tenant"),
        role=read["role"],
        users=_users(read.get("users"), read["role"]),
        expires_at=None if expires is None else _time(expires),
        created_at=created,
    )


def _digest(read: object) -> str:
    if not isinstance(read, str) or len(read) != 64 or not set(read) <= _HEX:
        raise ValueError("sha256 must be 64 hex characters in lower case")
    return read


def _users(read: object, role: Role) -> tuple[str, ...] | None:
    if read is None:
        return None
    if role == "admin":
        raise ValueError("an admin key sees all of its tenant's users and has no list of users")
    if not isinstance(read, list) or not read:
        raise ValueError("users must be a list that is not empty")
    return tuple(parse_id(user, "users") for user in read)


def _time(read: object) -> float:
    if not isinstance(read, str):
        raise ValueError("times must be ISO 8601 strings")
    try:
        parsed = datetime.fromisoformat(read)
    except ValueError:
        raise ValueError("times must be ISO 8601 strings") from None
    if parsed.tzinfo is None:
        raise ValueError("times must have a zone, such as Z")
    return parsed.timestamp()


def _shown(key: ApiKey) -> dict[str, object]:
    shown: dict[str, object] = {"id": key.id, "sha256": key.sha256, "tenant": key.tenant, "role": key.role}
    if key.users is not None:
        shown["users"] = list(key.users)
    if key.expires_at is not None:
        shown["expires_at"] = iso(key.expires_at)
    return {**shown, "created_at": iso(key.created_at)}


def iso(seconds: float) -> str:
    """Unix seconds as `2026-05-08T13:56:00Z`."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _reason(error: OSError | UnicodeDecodeError) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else "not UTF-8"
