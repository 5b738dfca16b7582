"""Chunk KV as bytes: the header of a KV file, written and read. Struct, JSON and SHA-256; no pickle, no tensors.

Knows: what a file says about itself and how it proves it. Refuses to know: folders, devices, what may be served.

Layout, big-endian: magic (8) · format (u32) · header bytes (u32) · payload bytes (u64) · SHA-256 of all this and the
header (32) · header (JSON) · payload. The header holds the payload's SHA-256, so every bit of the file is covered.
Payload: for each group of layers its keys, then its values, each (layers, tokens, heads, head_dim), position-free; of a
quantised file what `payload.py` makes of them.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import BinaryIO, Literal

from inferscale_server.errors import KvFileError

MAGIC = b"\x89ISKV\r\n\x1a"
FORMAT = 2
MAX_HEADER_BYTES = 1 << 17
MAX_TOKENS = 1 << 20
MAX_GROUPS = 64
MAX_SEEN = 512
MAX_TEXT = 1_024
DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
KvCodec = Literal["none", "int8", "int4"]
"""How keys and values lie in files and in host memory: in the model's dtype, or as codes with scales."""
CODECS: tuple[KvCodec, ...] = ("none", "int8", "int4")
SCALE_BYTES = 2

_LENGTHS = struct.Struct(">8sIIQ")
_DIGEST_BYTES = 32


@dataclass(frozen=True, slots=True)
class Seen:
    """A fact whose text the keys and values have seen; `mark` is the digest of its line at that time."""

    fact_id: str
    mark: str


@dataclass(frozen=True, slots=True)
class KvIdentity:
    """What chunk KV is of: two encodings of equal identity are interchangeable.

    `owner` is `Owner.digest()`; `name` a fact's id or a digest; `mark` the digest of the fact's own line; `tokens` how
    many there are, and `token_digest` which; `before_digest` names the tokens that it was encoded behind, and `behind`
    the facts among them, in order.
    """

    fingerprint: str
    owner: str
    kind: str
    name: str
    mark: str
    tokens: int
    token_digest: str
    before_digest: str
    behind: tuple[Seen, ...]


@dataclass(frozen=True, slots=True)
class GroupShape:
    """Layers whose keys and values have one shape."""

    layers: int
    heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class KvLayout:
    """How one rank lays out its share."""

    dtype: str
    groups: tuple[GroupShape, ...]
    rank: int
    world: int
    codec: KvCodec = "none"

    @property
    def row_bytes(self) -> int:
        """Bytes of one token's keys and values."""
        heads = ((group.layers * group.heads, group.head_dim) for group in self.groups)
        return sum(2 * count * head_bytes(self.codec, head_dim, self.dtype) for count, head_dim in heads)

    @property
    def channel_bytes(self) -> int:
        """Bytes that a whole file takes besides: the keys' channels."""
        channels = sum(group.layers * group.heads * group.head_dim for group in self.groups)
        return 0 if self.codec == "none" else channels * SCALE_BYTES

    def payload_bytes(self, tokens: int) -> int:
        """Bytes of so many tokens' keys and values."""
        return self.row_bytes * tokens + self.channel_bytes


@dataclass(frozen=True, slots=True)
class KvHeader:
    """All that a file says about itself."""

    identity: KvIdentity
    layout: KvLayout
    payload_digest: str

    @property
    def payload_bytes(self) -> int:
        """Length of the payload."""
        return self.layout.payload_bytes(self.identity.tokens)


@dataclass(frozen=True, slots=True)
class KvFile:
    """A file that checked out."""

    header: KvHeader
    payload: bytearray


def code_bytes(codec: KvCodec, head_dim: int) -> int:
    """Bytes of the codes of one head of a token."""
    return (head_dim + 1) // 2 if codec == "int4" else head_dim


def head_bytes(codec: KvCodec, head_dim: int, dtype: str) -> int:
    """Bytes of one head of a token, its scale included. `dtype`: the model's, in a word."""
    return head_dim * DTYPE_BYTES[dtype] if codec == "none" else code_bytes(codec, head_dim) + SCALE_BYTES


def digest_of(token_ids: Sequence[int]) -> str:
    """Names a text by its tokens."""
    return hashlib.sha256(b",".join(b"%d" % token for token in token_ids)).hexdigest()


def payload_digest(parts: Iterable[bytes | bytearray | memoryview]) -> str:
    """SHA-256 of the parts, one behind the other."""
    sha = hashlib.sha256()
    for part in parts:
        sha.update(part)
    return sha.hexdigest()


def pack_header(header: KvHeader) -> bytes:
    """All that stands before the payload. Raises KvFileError for a header that no reader would accept."""
    text = json.dumps(asdict(header), sort_keys=True, separators=(",", ":")).encode()
    if len(text) > MAX_HEADER_BYTES:
        raise KvFileError("header", f"{len(text)} bytes of header")
    _parse(json.loads(text))
    lengths = _LENGTHS.pack(MAGIC, FORMAT, len(text), header.payload_bytes)
    return lengths + hashlib.sha256(lengths + text).digest() + text


def read_header(stream: BinaryIO, size: int) -> KvHeader:
    """Read and check what stands before the payload of a file of `size` bytes.

    Never allocates more than the file holds. Raises KvFileError, whatever the bytes are.
    """
    start = stream.read(_LENGTHS.size + _DIGEST_BYTES)
    if len(start) < _LENGTHS.size + _DIGEST_BYTES:
        raise KvFileError("truncated", "shorter than its first fields")
    lengths, digest = start[: _LENGTHS.size], start[_LENGTHS.size :]
    magic, version, header_bytes, payload_bytes = _LENGTHS.unpack(lengths)
    if magic != MAGIC:
        raise KvFileError("magic", "not a KV file")
    if version != FORMAT:
        raise KvFileError("format", f"format {version}, not {FORMAT}")
    if header_bytes > MAX_HEADER_BYTES:
        raise KvFileError("header", f"{header_bytes} bytes of header")
    if size != len(start) + header_bytes + payload_bytes:
        raise KvFileError("truncated", f"{size} bytes, not {len(start) + header_bytes + payload_bytes}")
    text = stream.read(header_bytes)
    if hashlib.sha256(lengths + text).digest() != digest:
        raise KvFileError("checksum", "the header is not what was written")
    header = _parse(_loads(text))
    if header.payload_bytes != payload_bytes:
        raise KvFileError("header", f"shapes of {header.payload_bytes} bytes, payload of {payload_bytes}")
    return header


def read_file(stream: BinaryIO, size: int) -> KvFile:
    """Read and check a whole file of `size` bytes. Raises KvFileError, whatever the bytes are."""
    header = read_header(stream, size)
    payload = bytearray(header.payload_bytes)
    if stream.readinto(payload) != len(payload):  # type: ignore[attr-defined]
        raise KvFileError("truncated", "the payload ends early")
    if payload_digest([payload]) != header.payload_digest:
        raise KvFileError("checksum", "the payload is not what was written")
    return KvFile(header, payload)


def identity_to_wire(identity: KvIdentity) -> dict[str, object]:
    """Plain dictionaries and lists, for a message to another process."""
    return asdict(identity)


def identity_from_wire(value: object) -> KvIdentity:
    """The inverse. Raises KvFileError."""
    parts = _fields(value, KvIdentity)
    seen = [_seen(one) for one in _list(parts["behind"], MAX_SEEN)]
    words = ("fingerprint", "owner", "kind", "name", "mark", "token_digest", "before_digest")
    texts = {word: _text(parts[word]) for word in words}
    return KvIdentity(**texts, tokens=_number(parts["tokens"], 1, MAX_TOKENS), behind=tuple(seen))


def _loads(text: bytes) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise KvFileError("header", "not JSON") from error


def _parse(value: object) -> KvHeader:
    parts = _fields(value, KvHeader)
    layout = _fields(parts["layout"], KvLayout)
    groups = tuple(_group(one) for one in _list(layout["groups"], MAX_GROUPS))
    dtype, world = _text(layout["dtype"]), _number(layout["world"], 1, 4_096)
    codec = next((known for known in CODECS if known == layout["codec"]), None)
    if dtype not in DTYPE_BYTES or codec is None or not groups:
        raise KvFileError("header", "unknown dtype or codec, or no layers")
    return KvHeader(
        identity=identity_from_wire(parts["identity"]),
        layout=KvLayout(dtype, groups, _number(layout["rank"], 0, world - 1), world, codec),
        payload_digest=_text(parts["payload_digest"]),
    )


def _group(value: object) -> GroupShape:
    parts = _fields(value, GroupShape)
    return GroupShape(*(_number(parts[name], 1, 1 << 16) for name in GroupShape.__slots__))


def _seen(value: object) -> Seen:
    parts = _fields(value, Seen)
    return Seen(_text(parts["fact_id"]), _text(parts["mark"]))


def _fields(value: object, kind: type) -> Mapping[str, object]:
    names = set(kind.__slots__)  # type: ignore[attr-defined]
    if not isinstance(value, dict) or set(value) != names:
        raise KvFileError("header", f"not the fields of {kind.__name__}")
    return value


def _list(value: object, longest: int) -> Sequence[object]:
    if not isinstance(value, list | tuple) or len(value) > longest:
        raise KvFileError("header", f"not a list of at most {longest}")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str) or len(value) > MAX_TEXT:
        raise KvFileError("header", "not a short text")
    return value


def _number(value: object, low: int, high: int) -> int:
    if type(value) is not int or not low <= value <= high:
        raise KvFileError("header", f"not a number from {low} to {high}")
    return value
