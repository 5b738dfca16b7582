"""KV files in a folder: written whole or not at all, and what is not ours is left alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from inferscale_server.errors import KvFileError
from inferscale_server.kv_codec import KvHeader, payload_digest
from inferscale_server.kv_files import force, kv_path, read_kv, remove, scan, temporary, write_temporary

from .test_kv_codec import IDENTITY, LAYOUT, PAYLOAD

STEM = "ab" * 32


def put(folder: Path, stem: str = STEM, rank: int = 0) -> Path:
    """One file in its place."""
    path = kv_path(folder, stem, rank)
    write_temporary(path, KvHeader(IDENTITY, LAYOUT, payload_digest([PAYLOAD])), [memoryview(PAYLOAD)])
    force(temporary(path))
    os.rename(temporary(path), path)
    return path


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = put(tmp_path)
    assert path.relative_to(tmp_path).as_posix() == f"ab/{STEM}.0.kv"
    assert bytes(read_kv(path).payload) == PAYLOAD
    assert path.stat().st_mode & 0o777 == 0o600 and path.parent.stat().st_mode & 0o777 == 0o700


def test_an_unfinished_file_is_never_seen_and_swept(tmp_path: Path) -> None:
    path = kv_path(tmp_path, STEM, 0)
    write_temporary(path, KvHeader(IDENTITY, LAYOUT, payload_digest([PAYLOAD])), [memoryview(PAYLOAD)])
    assert not path.exists() and list(scan(tmp_path)) == [] and not temporary(path).exists()


def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    path = kv_path(tmp_path, STEM, 0)
    path.parent.mkdir()
    temporary(path).symlink_to(tmp_path / "elsewhere")  # a link is not followed, so opening fails
    with pytest.raises(OSError):
        write_temporary(path, KvHeader(IDENTITY, LAYOUT, payload_digest([PAYLOAD])), [memoryview(PAYLOAD)])
    assert list(path.parent.iterdir()) == [] and not (tmp_path / "elsewhere").exists()


def test_the_scan_tells_faults_and_leaves_foreign_files_alone(tmp_path: Path) -> None:
    good, torn, wrong = put(tmp_path), put(tmp_path, "cd" * 32), put(tmp_path, "ef" * 32)
    torn.write_bytes(torn.read_bytes()[:-1])
    os.rename(wrong, kv_path(tmp_path, "ef" * 32, 1))
    foreign = [tmp_path / "ab" / "notes.txt", tmp_path / "readme", tmp_path / "ab" / f"{STEM}.kv"]
    for path in foreign:
        path.write_text("mine")
    found = {file.stem[:2]: file.fault for file in scan(tmp_path)}
    assert found == {"ab": None, "cd": "truncated", "ef": "rank"}
    assert good.exists() and all(path.read_text() == "mine" for path in foreign)


def test_a_missing_folder_holds_nothing(tmp_path: Path) -> None:
    assert list(scan(tmp_path / "none")) == []


@pytest.mark.parametrize("kind", ["missing", "folder", "link", "pipe"])
def test_what_is_no_plain_file_is_not_read(tmp_path: Path, kind: str) -> None:
    path, real = tmp_path / "x.kv", put(tmp_path)
    if kind == "folder":
        path.mkdir()
    elif kind == "link":
        path.symlink_to(real)
    elif kind == "pipe":
        os.mkfifo(path)
    with pytest.raises(KvFileError) as caught:
        read_kv(path)
    assert caught.value.reason == ("missing" if kind == "missing" else "unreadable")


def test_removing_what_is_gone_is_harmless(tmp_path: Path) -> None:
    path = put(tmp_path)
    remove([path, path])
    assert not path.exists()
