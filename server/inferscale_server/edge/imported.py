"""One line of an export, back to a fact.

Knows: the fields of an exported fact. Refuses to know: where lines come from. As strict as an add: what cannot be kept
is refused, never dropped.
"""

from __future__ import annotations

import time
from dataclasses import asdict

from inferscale_server.edge.json_body import parse_object
from inferscale_server.errors import InvalidRequest, RequestError, TooLarge
from inferscale_server.limits import MAX_IMPORT_LINE_BYTES
from inferscale_server.moments import parse_timestamp
from inferscale_server.remember import DraftDefaults, drafts_from_facts, parse_id
from inferscale_server.types import ImportedFact

KEPT = ("id", "created_at", "updated_at")
CLOCK_SLACK_S = 60.0
"""How far another machine's clock may be ahead."""


def parse_imported(line: bytes | None) -> ImportedFact:
    """The fact on this line; None stands for a line that was too long. Raises InvalidRequest or TooLarge."""
    if line is None:
        raise TooLarge(f"the line is longer than {MAX_IMPORT_LINE_BYTES} bytes")
    try:
        fields = parse_object(line)
    except RequestError as error:
        raise InvalidRequest(error.message.replace("the body", "the line", 1)) from error
    kept = {key: fields.pop(key, None) for key in KEPT}
    try:
        [draft] = drafts_from_facts([fields], DraftDefaults())
    except RequestError as error:
        error.message = error.message.replace("facts[0].", "").replace("facts[0] ", "the fact ")
        raise
    created_at, updated_at = (_parse_past(kept[name], name) for name in ("created_at", "updated_at"))
    if created_at is not None and updated_at is not None and updated_at < created_at:
        raise InvalidRequest("updated_at lies before created_at", param="updated_at")
    return ImportedFact(
        **asdict(draft),
        id=None if kept["id"] is None else parse_id(kept["id"], "id"),
        created_at=created_at,
        updated_at=updated_at,
    )


def _parse_past(value: object, param: str) -> float | None:
    moment = parse_timestamp(value, param)
    if moment is not None and moment > time.time() + CLOCK_SLACK_S:
        raise InvalidRequest(f"{param} lies in the future", param=param)
    return moment
