"""What a client may ask a model's answer to look like: JSON schemas, patterns, choices, the parameters of tools.

Knows: where they stand in a body, and their size. Refuses to know: what they mean. The engine turns them into tables
while all other requests wait, so what costs seconds, or never ends, is refused before it gets there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from inferscale_server.edge.answers import clip
from inferscale_server.edge.patterns import written_out
from inferscale_server.edge.refs import refers_to_itself
from inferscale_server.errors import InvalidRequest
from inferscale_server.limits import (
    MAX_PATTERN_CHARS,
    MAX_PATTERN_PARTS,
    MAX_SCHEMA_BYTES,
    MAX_SCHEMA_CHOICES,
    MAX_SCHEMA_DEPTH,
    MAX_SCHEMA_PROPERTIES,
    MAX_SCHEMA_REPEATS,
    MAX_SCHEMA_REPEATS_IN_ALL,
    MAX_SCHEMAS_BYTES,
    MAX_TOOLS,
)

REPEATS = frozenset({"minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"})
REPEATS |= {"minContains", "maxContains", "min", "max"}
"""Keywords whose number the engine may write out; the last two are of structural tags."""
PATTERNS = frozenset({"pattern", "regex"})
OBJECTS = ("response_format", "structured_outputs")
NESTED_IN = ("extra_body", "sampling_params")
"""Objects that some clients or routes unfold into the top level."""


def check_schemas(body: Mapping[str, object]) -> None:
    """Raise InvalidRequest (code `invalid_schema` or `schema_too_large`, `param` the field) for what is not served."""
    found = _Found()
    for fields in (body, *(nested for name in NESTED_IN if isinstance(nested := body.get(name), Mapping))):
        _check_fields(fields, found)


@dataclass(slots=True)
class _Found:
    """What all schemas of one request come to."""

    bytes: int = 0
    choices: int = 0
    repeats: float = 0

    def weigh(self, written: str, param: str) -> None:
        """Count the bytes of one schema."""
        size = len(written.encode("utf-8", "surrogatepass"))
        self.bytes += size
        if size > MAX_SCHEMA_BYTES:
            raise _too_large(f"{param} is larger than {MAX_SCHEMA_BYTES} bytes", param)
        if self.bytes > MAX_SCHEMAS_BYTES:
            raise _too_large(f"all schemas of a request are at most {MAX_SCHEMAS_BYTES} bytes", param)

    def choose(self, members: Sequence[object], param: str) -> None:
        """Count the members of one enumeration."""
        self.choices += len(members)
        if self.choices > MAX_SCHEMA_CHOICES:
            raise _too_large(f"{param}: more than {MAX_SCHEMA_CHOICES} members of enumerations", param)

    def repeat(self, number: float, name: str, param: str) -> None:
        """Add up what may be written out."""
        self.repeats += max(number, 0)
        if number > MAX_SCHEMA_REPEATS:
            raise _too_large(f"{param}: {name} is at most {MAX_SCHEMA_REPEATS}", param)
        if self.repeats > MAX_SCHEMA_REPEATS_IN_ALL:
            raise _too_large(f"{param}: {name} and its like come to more than {MAX_SCHEMA_REPEATS_IN_ALL}", param)


def _check_fields(fields: Mapping[str, object], found: _Found) -> None:
    for name in OBJECTS:
        written = fields.get(name)
        if written is None:
            continue
        if not isinstance(written, Mapping):
            raise InvalidRequest(f"{name} must be an object", code="invalid_schema", param=name)
        _check_strings(written, name, found)
        _check_tree(written, name, found)
    _check_response_format(fields.get("response_format"))
    _check_text_format(fields.get("text"), found)
    _check_tools(fields.get("tools"), found)


def _check_response_format(written: object) -> None:
    """vLLM takes the schema for granted."""
    if not isinstance(written, Mapping) or written.get("type") != "json_schema":
        return
    inner = written.get("json_schema")
    if not isinstance(inner, Mapping) or not isinstance(inner.get("schema"), Mapping):
        raise InvalidRequest(
            "response_format.json_schema.schema must be an object",
            code="invalid_schema",
            param="response_format.json_schema.schema",
        )


def _check_text_format(text: object, found: _Found) -> None:
    """Where `/v1/responses` has its response format."""
    if isinstance(text, Mapping) and isinstance(written := text.get("format"), Mapping):
        _check_tree(written, "text.format", found)


def _check_tools(tools: object, found: _Found) -> None:
    if not isinstance(tools, Sequence) or isinstance(tools, str):
        return
    if len(tools) > MAX_TOOLS:
        raise _too_large(f"more than {MAX_TOOLS} tools", "tools")
    for i, tool in enumerate(tools):
        if isinstance(tool, Mapping):
            function = tool.get("function", tool)
            parameters = function.get("parameters") if isinstance(function, Mapping) else None
            _check_tree(parameters, f"tools[{i}]", found)


def _check_strings(written: Mapping[str, object], name: str, found: _Found) -> None:
    """Fields of `structured_outputs` that are text: JSON in a string, a pattern, a grammar; and the list of choices."""
    for key in ("json", "structural_tag"):
        text = written.get(key)
        if isinstance(text, str):
            param = f"{name}.{key}"
            if len(text) > MAX_SCHEMA_BYTES:
                raise _too_large(f"{param} is larger than {MAX_SCHEMA_BYTES} bytes", param)
            _check_tree(_loads(text, param), param, found)
    for key in ("regex", "grammar", "whitespace_pattern"):
        _check_pattern(written.get(key), f"{name}.{key}")
    choices = written.get("choice")
    if isinstance(choices, list):
        found.choose(choices, f"{name}.choice")


def _check_tree(tree: object, param: str, found: _Found) -> None:
    """A schema, or anything that holds some."""
    if not isinstance(tree, dict | list):
        return
    _check_depth(tree, param)
    found.repeats = 0  # of one schema: those of tools that are not forced are never written out
    found.weigh(json.dumps(tree, ensure_ascii=False, separators=(",", ":")), param)
    for node in _objects(tree):
        _check_keywords(node, param, found)
    if any(refers_to_itself(root) for root in _roots(tree)):
        raise InvalidRequest(
            f"{param}: a schema that refers to itself is not served", code="invalid_schema", param=param
        )


def _check_keywords(node: Mapping[str, object], param: str, found: _Found) -> None:
    for name in REPEATS & node.keys():
        number = node[name]
        if isinstance(number, int | float):
            found.repeat(number, name, param)
    properties = node.get("properties")
    if isinstance(properties, dict) and len(properties) > MAX_SCHEMA_PROPERTIES:
        raise _too_large(f"{param}: an object has at most {MAX_SCHEMA_PROPERTIES} properties", param)
    for name in PATTERNS & node.keys():
        _check_pattern(node[name], param)
    reference = node.get("$ref")
    if isinstance(reference, str) and not reference.startswith("#"):
        raise InvalidRequest(f"{param}: $ref {clip(reference)!r} leads elsewhere", code="invalid_schema", param=param)
    members = node.get("enum")
    if isinstance(members, list):
        found.choose(members, param)


def _check_pattern(pattern: object, param: str) -> None:
    if not isinstance(pattern, str):
        return
    if len(pattern) > MAX_PATTERN_CHARS:
        raise _too_large(f"{param}: a pattern is at most {MAX_PATTERN_CHARS} characters", param)
    if written_out(pattern) > MAX_PATTERN_PARTS:
        raise _too_large(f"{param}: the pattern's repetitions come to more than {MAX_PATTERN_PARTS} parts", param)


def _check_depth(tree: object, param: str) -> None:
    level = [tree]
    for _ in range(MAX_SCHEMA_DEPTH):
        level = [child for node in level for child in _children(node) if isinstance(child, dict | list)]
        if not level:
            return
    raise _too_large(f"{param} is nested deeper than {MAX_SCHEMA_DEPTH} levels", param)


def _roots(tree: object) -> Iterator[object]:
    """What a `$ref` may start from: the schemas inside a wrapper, and the whole."""
    yield tree
    for node in _objects(tree):
        for name in ("schema", "json_schema", "json"):
            if isinstance(node.get(name), dict):
                yield node[name]


def _objects(tree: object) -> Iterator[dict[str, object]]:
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            yield node
        waiting += [child for child in _children(node) if isinstance(child, dict | list)]


def _children(node: object) -> Sequence[object]:
    if isinstance(node, dict):
        return tuple(node.values())
    return node if isinstance(node, list) else ()


def _loads(text: str, param: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{param} is not JSON", code="invalid_schema", param=param) from error


def _too_large(message: str, param: str) -> InvalidRequest:
    return InvalidRequest(message, code="schema_too_large", param=param)
