"""The codec of KV files: what was written is read, and nothing else is (R3, S7)."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import random
import struct
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferscale_server.errors import KvFileError
from inferscale_server.kv_codec import (
    FORMAT,
    MAGIC,
    MAX_HEADER_BYTES,
    GroupShape,
    KvCodec,
    KvFile,
    KvHeader,
    KvIdentity,
    KvLayout,
    Seen,
    identity_from_wire,
    identity_to_wire,
    pack_header,
    payload_digest,
    read_file,
    read_header,
)

IDENTITY = KvIdentity("f" * 64, "o" * 64, "fact", "id-1", "m" * 32, 5, "t" * 64, "b" * 64, (Seen("id-0", "n" * 32),))
LAYOUT = KvLayout("bfloat16", (GroupShape(3, 2, 4), GroupShape(1, 2, 8)), 0, 2)
PAYLOAD = random.Random(1).randbytes(LAYOUT.payload_bytes(5))


def packed(payload: bytes = PAYLOAD, **changes: object) -> bytes:
    header = KvHeader(IDENTITY, LAYOUT, payload_digest([payload]))
    return pack_header(dataclasses.replace(header, **changes)) + payload  # type: ignore[arg-type]


def unpacked(file: bytes) -> KvFile:
    return read_file(io.BytesIO(file), len(file))


def forged(text: bytes, payload: bytes = b"", version: int = FORMAT) -> bytes:
    """A file whose header is anything at all, with a digest that fits."""
    lengths = struct.pack(">8sIIQ", MAGIC, version, len(text), len(payload))
    return lengths + hashlib.sha256(lengths + text).digest() + text + payload


def test_what_was_written_is_read() -> None:
    file = unpacked(packed())
    assert (file.header.identity, file.header.layout, bytes(file.payload)) == (IDENTITY, LAYOUT, PAYLOAD)
    assert read_header(io.BytesIO(packed()), len(packed())) == file.header


@pytest.mark.parametrize(("codec", "row", "file"), [("none", 160, 800), ("int8", 112, 640), ("int4", 72, 440)])
def test_a_layout_says_how_long_rows_and_files_are(codec: KvCodec, row: int, file: int) -> None:
    """Six heads of 4 numbers and two of 8, keys and values: 2 bytes a number; or codes and 2 bytes a head, and in a
    file 2 bytes for each of the 40 channels of the keys."""
    layout = dataclasses.replace(LAYOUT, codec=codec)
    assert (layout.row_bytes, layout.payload_bytes(5)) == (row, file)


def test_a_header_names_its_codec() -> None:
    layout = dataclasses.replace(LAYOUT, codec="int4")
    payload = bytes(layout.payload_bytes(5))
    assert unpacked(packed(payload, layout=layout)).header.layout == layout
    with pytest.raises(KvFileError, match="codec"):
        packed(layout=dataclasses.replace(LAYOUT, codec="int3"))


def test_an_identity_survives_a_message() -> None:
    assert identity_from_wire(json.loads(json.dumps(identity_to_wire(IDENTITY)))) == IDENTITY


def test_r3_a_file_truncated_at_each_sixteenth_is_detected() -> None:
    whole, found = packed(), 0
    for sixteenth in range(16):
        with pytest.raises(KvFileError):
            unpacked(whole[: len(whole) * sixteenth // 16])
        found += 1
    print(f"R3: {found} of 16 truncations detected")


def test_r3_a_file_with_one_flipped_bit_is_detected() -> None:
    whole, dice, found = packed(), random.Random(3), 0
    for _ in range(1_000):
        flipped = bytearray(whole)
        flipped[dice.randrange(len(whole))] ^= 1 << dice.randrange(8)
        with pytest.raises(KvFileError):
            unpacked(bytes(flipped))
        found += 1
    print(f"R3: {found} of 1000 flipped bits detected")


def test_a_file_that_is_too_long_is_detected() -> None:
    with pytest.raises(KvFileError, match="truncated"):
        unpacked(packed() + b"x")


@settings(max_examples=500)
@given(st.binary(max_size=400))
def test_s7_bytes_from_anywhere_give_a_typed_error_only(junk: bytes) -> None:
    for file in (junk, MAGIC + junk, packed()[:24] + junk):
        with pytest.raises(KvFileError):
            unpacked(file)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=12,
)


def places(value: object) -> list[tuple[object, ...]]:
    """Every path into a JSON value."""
    keys = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [(), *((key, *rest) for key in keys for rest in places(value[key]))]  # type: ignore[index]


def replaced(value: object, path: tuple[object, ...], new: object) -> object:
    if not path:
        return new
    copy = value.copy()  # type: ignore[attr-defined]
    copy[path[0]] = replaced(copy[path[0]], path[1:], new)
    return copy


@settings(max_examples=500)
@given(st.data())
def test_s7_a_forged_header_with_a_fitting_digest_gives_a_typed_error_or_itself(
    data: st.DataObject,
) -> None:
    true = json.loads(packed()[56 : 56 + struct.unpack(">I", packed()[12:16])[0]])
    path = data.draw(st.sampled_from(places(true)))
    text = json.dumps(replaced(true, path, data.draw(json_values))).encode()
    try:
        file = unpacked(forged(text, PAYLOAD))
    except KvFileError:
        return
    assert json.loads(json.dumps(dataclasses.asdict(file.header))) == json.loads(text)


@pytest.mark.parametrize("text", [b"[" * 100_000, b"9" * 100_000, b"\xff\xfe", b"", b"null", b"[]", b"{}"])
def test_s7_hostile_json_gives_a_typed_error(text: bytes) -> None:
    with pytest.raises(KvFileError, match="header"):
        unpacked(forged(text))


def test_s7_lengths_above_the_files_size_allocate_nothing() -> None:
    huge = [
        struct.pack(">8sIIQ", MAGIC, FORMAT, header, payload) + bytes(40)
        for header, payload in [(MAX_HEADER_BYTES, 0), (2**32 - 1, 0), (16, 2**40), (16, 2**64 - 1)]
    ]
    layout = dataclasses.replace(LAYOUT, groups=(GroupShape(65_536, 65_536, 65_536),))
    huge.append(forged(_text(layout)))
    tracemalloc.start()
    try:
        for file in huge:
            with pytest.raises(KvFileError):
                unpacked(file)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20, peak


def _text(layout: KvLayout) -> bytes:
    return json.dumps(dataclasses.asdict(KvHeader(IDENTITY, layout, "d"))).encode()


def test_another_format_is_not_read() -> None:
    with pytest.raises(KvFileError, match="format"):
        unpacked(forged(b"{}", version=FORMAT + 1))


def test_a_header_that_no_reader_would_take_is_not_written() -> None:
    with pytest.raises(KvFileError, match="header"):
        packed(identity=dataclasses.replace(IDENTITY, name="x" * 2_000))
    with pytest.raises(KvFileError, match="header"):
        packed(identity=dataclasses.replace(IDENTITY, behind=(Seen("a" * 1_000, "b" * 1_000),) * 200))


def test_a_checksum_of_the_payload_cannot_be_moved_to_another_payload() -> None:
    other = bytes(len(PAYLOAD))
    with pytest.raises(KvFileError, match="checksum"):
        unpacked(packed()[: -len(PAYLOAD)] + other)
