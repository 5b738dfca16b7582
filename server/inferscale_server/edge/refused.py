"""Fields and headers that no client may send, on any route.

Knows: their names and where vLLM would read them. They name another owner's KV, change a cache salt, or jump the queue;
on InferScale the server alone sets them.
"""

from __future__ import annotations

from collections.abc import Mapping

from inferscale_server.edge.json_body import JsonObject
from inferscale_server.errors import InvalidRequest

REFUSED_FIELDS = frozenset(
    {
        "kv_transfer_params",
        "cache_salt",
        "vllm_xargs",
        "extra_args",
        "ec_transfer_params",
        "skip_reading_prefix_cache",
        "priority",
    }
)
REFUSED_HEADER = b"x-vllm-priority"
NESTED_IN = ("extra_body", "sampling_params")
"""Objects that some clients or routes unfold into the top level."""


def refuse_fields(body: JsonObject) -> None:
    """Raise InvalidRequest (code `refused_field`) when `body` holds a refused field at the top or one level down."""
    _refuse_in(body, "")
    for outer in NESTED_IN:
        nested = body.get(outer)
        if isinstance(nested, Mapping):
            _refuse_in(nested, outer + ".")


def refuse_header(names: frozenset[bytes]) -> None:
    """Raise InvalidRequest (code `refused_field`) when the refused header is among `names` (lower case)."""
    if REFUSED_HEADER in names:
        raise _refused("X-Vllm-Priority", "the header")


def _refuse_in(fields: Mapping[str, object], prefix: str) -> None:
    for name in sorted(REFUSED_FIELDS & fields.keys()):
        raise _refused(prefix + name, "the field")


def _refused(name: str, kind: str) -> InvalidRequest:
    return InvalidRequest(f"{kind} {name!r} is set by the server alone", code="refused_field", param=name)
