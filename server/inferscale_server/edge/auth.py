"""Who may come in: the caller of a request from its key, and how many requests one user may have in flight.

Knows: keys, peers, requests in flight. Refuses to know: what a route needs, and what a request is about.
"""

from __future__ import annotations

import hmac
import ipaddress
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from starlette.types import Scope

from inferscale_server.config import LOOPBACK
from inferscale_server.edge.body import header_values
from inferscale_server.edge.identity import LOCAL, Identity
from inferscale_server.edge.keys import ApiKey, hash_of, read_keys
from inferscale_server.errors import ConfigError, Forbidden, TooManyRequests, Unauthorized, Unavailable
from inferscale_server.limits import MAX_REQUESTS_PER_USER
from inferscale_server.types import Owner

logger = logging.getLogger(__name__)

RETRY_AFTER_S = 1
_SHELF_CHARS = 8


class KeyRing:
    """The keys that are valid now, by their hashes."""

    def __init__(self, keys: Iterable[ApiKey], now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._shelves: dict[str, list[ApiKey]] = {}
        for key in keys:
            self._shelves.setdefault(key.sha256[:_SHELF_CHARS], []).append(key)

    def __len__(self) -> int:
        return sum(map(len, self._shelves.values()))

    def find(self, secret: str) -> ApiKey | None:
        """The key that `secret` is, unless it has expired.

        The shelf is found in a time that tells at most a few bits of a hash; the rest is compared in constant time.
        """
        digest = hash_of(secret)
        for key in self._shelves.get(digest[:_SHELF_CHARS], ()):
            if hmac.compare_digest(key.sha256, digest) and not key.expired(self._now()):
                return key
        return None


class Access:
    """Lets requests in. Without a keys file everybody is the local tenant, and only this machine is its admin."""

    def __init__(
        self,
        keys_file: Path | None = None,
        max_requests_per_user: int = MAX_REQUESTS_PER_USER,
        *,
        by_local_name: bool = False,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Raises ConfigError for a broken keys file.

        `by_local_name`: without keys, take only requests whose Host header names this machine. A web page whose own
        name was pointed at a loopback address (DNS rebinding) calls from here too, but under that name.
        """
        self._keys_file = keys_file
        self._by_local_name = by_local_name
        self._now = now
        self._ring = None if keys_file is None else KeyRing(read_keys(keys_file), now)
        self._max_requests_per_user = max_requests_per_user
        self._in_flight: Counter[Owner] = Counter()

    @property
    def needs_keys(self) -> bool:
        """Is there a file of API keys?"""
        return self._ring is not None

    def identify(self, scope: Scope) -> Identity:
        """The caller of the request. Raises Unauthorized, in the same words for every kind of wrong key."""
        if self._ring is None:
            if self._by_local_name and host_of(scope) not in LOOPBACK:
                raise Forbidden("without API keys this server answers to the names of this machine", code="not_local")
            return LOCAL if is_local(scope) else replace(LOCAL, role="write")
        secret = _bearer(scope)
        key = None if secret is None else self._ring.find(secret)
        if key is None:
            raise Unauthorized("a valid API key is needed: Authorization: Bearer <key>")
        return key.identity()

    @contextmanager
    def in_flight(self, owners: Iterable[Owner]) -> Iterator[None]:
        """Count a request of `owners` while it runs. Raises TooManyRequests when one has as many as it may."""
        held = frozenset(owners)
        if any(self._in_flight[owner] >= self._max_requests_per_user for owner in held):
            raise TooManyRequests(
                f"this user has {self._max_requests_per_user} requests in flight, and no more are allowed",
                code="too_many_requests_in_flight",
                retry_after_s=RETRY_AFTER_S,
            )
        self._in_flight.update(held)
        try:
            yield
        finally:
            for owner in held:
                self._leave(owner)

    def _leave(self, owner: Owner) -> None:
        self._in_flight[owner] -= 1
        if not self._in_flight[owner]:
            del self._in_flight[owner]  # or every user that ever came would stay

    def reload(self) -> str:
        """Read the keys file again; when it is broken, the old keys stay. Returns what the log says."""
        if self._keys_file is None:
            return "there is no file of API keys"
        try:
            self._ring = KeyRing(read_keys(self._keys_file), self._now)
        except ConfigError as error:
            said = f"the old API keys stay: {error}"
            logger.error("%s", said)
        else:
            said = f"API keys read again: {len(self._ring)} keys"
            logger.warning("%s", said)
        return said


class Closed(Access):
    """Lets nobody in: stands at the door until the server has started."""

    def identify(self, scope: Scope) -> Identity:
        """Raises Unavailable."""
        raise Unavailable("the server is starting", code="not_ready")


def is_local(scope: Scope) -> bool:
    """Does the request come from this machine? A peer without an address came through a Unix socket."""
    client = scope.get("client")
    if not client or not client[0]:
        return True
    try:
        address = ipaddress.ip_address(client[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def host_of(scope: Scope) -> str | None:
    """The host that the client believes it talks to, without its port; None when it does not say, or says two."""
    sent = list(header_values(scope, b"host"))
    try:
        return urlsplit(f"//{sent[0].decode('latin-1')}").hostname if len(sent) == 1 else None
    except ValueError:
        return None


def _bearer(scope: Scope) -> str | None:
    """The key in the one Authorization header, None when there is none or several or of another kind."""
    sent = list(header_values(scope, b"authorization"))
    if len(sent) != 1:
        return None
    scheme, _, secret = sent[0].decode("latin-1").partition(" ")
    return secret.strip() or None if scheme.lower() == "bearer" else None
