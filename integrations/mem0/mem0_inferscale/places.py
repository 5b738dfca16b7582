"""Where mem0's ids lead: mem0 asks for a memory by its id alone, the server keeps memories by owner.

Knows: what this process has seen, and how to ask the server. Refuses to know: payloads.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock

from inferscale_sdk import InferScaleClient
from mem0_inferscale.payload import fact_id_of

MOST = 100_000
"""Ids that are kept in mind."""


@dataclass(frozen=True, slots=True)
class Place:
    """Whose memory it is, and its id on the server."""

    owner: str
    fact_id: str


class Places:
    """From mem0's id to the place; thread-safe."""

    def __init__(self, client: InferScaleClient) -> None:
        self._client = client
        self._lock = Lock()
        self._seen: OrderedDict[str, Place] = OrderedDict()

    def note(self, vector_id: str, owner: str, fact_id: str | None = None) -> None:
        """This memory is there; `fact_id` when the server has it under another id."""
        place = Place(owner, fact_id_of(vector_id) if fact_id is None else fact_id)
        with self._lock:
            self._seen[str(vector_id)] = place
            self._seen.move_to_end(str(vector_id))
            while len(self._seen) > MOST:
                self._seen.popitem(last=False)

    def of(self, vector_id: str) -> Place | None:
        """The place; None when the server knows none. What another process has stored takes a key with the role
        admin: raises PermissionDeniedError without one, and ValueError for an id that is no UUID."""
        with self._lock:
            seen = self._seen.get(str(vector_id))
        if seen is not None:
            return seen
        fact_id = fact_id_of(vector_id)
        owners = [user.user_id for user in self._client.users.list(fact_id=fact_id).data]
        if not owners:
            return None
        self.note(vector_id, owners[0])
        return Place(owners[0], fact_id)
