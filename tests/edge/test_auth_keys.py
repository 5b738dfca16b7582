"""Claims about the file of API keys: who can read it, what stands in it, and that it is never half written."""

from __future__ import annotations

import json
import stat
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from inferscale_server.edge.auth import KeyRing
from inferscale_server.edge.identity import Identity
from inferscale_server.edge.keys import ApiKey, change_keys, hash_of, make_key, read_keys
from inferscale_server.errors import ConfigError

NOW = 1_800_000_000.0
LINE: Mapping[str, object] = {
    "id": "k1",
    "sha256": "0" * 64,
    "tenant": "acme",
    "role": "read",
    "created_at": "2026-01-01T00:00:00Z",
}


def written(folder: Path, *lines: object, mode: int = 0o600) -> Path:
    file = folder / "keys"
    file.write_text("".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines), "utf-8")
    file.chmod(mode)
    return file


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    keys = (
        make_key("acme", "admin", (), None, NOW).key,
        make_key("Übung", "write", ("alice", "王"), NOW + 60, NOW).key,
    )
    change_keys(tmp_path / "keys", lambda old: (*old, *keys))
    assert read_keys(tmp_path / "keys") == keys


def test_the_file_is_for_its_owner_alone_and_holds_no_key(tmp_path: Path) -> None:
    new = make_key("acme", "read", (), None, NOW)
    change_keys(tmp_path / "keys", lambda _: [new.key])
    content = (tmp_path / "keys").read_text("utf-8")
    assert stat.S_IMODE((tmp_path / "keys").stat().st_mode) == 0o600
    assert new.secret not in content and hash_of(new.secret) in content
    assert [file.name for file in tmp_path.iterdir()] == ["keys"]


def test_two_keys_differ_and_are_256_bits_long() -> None:
    first, second = (make_key("acme", "read", (), None, NOW).secret for _ in range(2))
    assert first != second and len(first.removeprefix("isk_")) == 43


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o666])
def test_a_file_that_others_can_read_or_change_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(ConfigError, match="chmod 600"):
        read_keys(written(tmp_path, LINE, mode=mode))


@pytest.mark.parametrize(
    "line",
    [
        "secret-canary\n",
        "[]\n",
        "[" * 100_000 + "\n",
        {**LINE, "key": "secret-canary"},
        {key: value for key, value in LINE.items() if key != "tenant"},
        {**LINE, "role": "secret-canary"},
        {**LINE, "role": ["read"]},
        {**LINE, "sha256": "secret-canary"},
        {**LINE, "sha256": "A" * 64},
        {**LINE, "tenant": ""},
        {**LINE, "tenant": " acme"},
        {**LINE, "id": 5},
        {**LINE, "users": []},
        {**LINE, "users": "alice"},
        {**LINE, "users": ["alice", " bob"]},
        {**LINE, "role": "admin", "users": ["alice"]},
        {**LINE, "expires_at": "secret-canary"},
        {**LINE, "expires_at": "2026-01-01T00:00:00"},
        {**LINE, "expires_at": 5},
    ],
)
def test_a_wrong_line_is_named_by_its_number_and_not_quoted(tmp_path: Path, line: object) -> None:
    file = written(tmp_path, {**LINE, "id": "k0", "sha256": "1" * 64}, "\n", line)
    with pytest.raises(ConfigError, match="line 3") as caught:
        read_keys(file)
    assert "canary" not in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("second", [{**LINE, "id": "k2"}, {**LINE, "sha256": "1" * 64}])
def test_a_key_or_an_id_that_stands_twice_is_refused(tmp_path: Path, second: Mapping[str, object]) -> None:
    with pytest.raises(ConfigError, match="the same"):
        read_keys(written(tmp_path, LINE, second))


def test_a_missing_file_is_an_error_of_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="none: No such file"):
        read_keys(tmp_path / "none")


def test_a_change_that_fails_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    file = written(tmp_path, LINE)
    before = file.read_bytes()

    def refuse(keys: tuple[ApiKey, ...]) -> tuple[ApiKey, ...]:
        raise ConfigError(f"{len(keys)} keys")

    with pytest.raises(ConfigError, match="1 keys"):
        change_keys(file, refuse)
    assert file.read_bytes() == before and [left.name for left in tmp_path.iterdir()] == ["keys"]


def test_keys_made_at_once_are_all_kept(tmp_path: Path) -> None:
    made = [make_key("acme", "read", (), None, NOW).key for _ in range(8)]

    def add(key: ApiKey) -> None:
        change_keys(tmp_path / "keys", lambda keys: (*keys, key))

    threads = [threading.Thread(target=add, args=(key,)) for key in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(read_keys(tmp_path / "keys")) == set(made)


def test_a_key_is_found_until_it_expires() -> None:
    clock = [NOW]
    new = make_key("acme", "write", ("alice",), NOW + 10, NOW)
    ring = KeyRing([new.key], lambda: clock[0])
    found = ring.find(new.secret)
    assert found is not None
    assert found.identity() == Identity("acme", "write", frozenset({"alice"}), new.key.id)
    clock[0] = NOW + 10
    assert ring.find(new.secret) is None


def test_a_hash_in_place_of_a_key_opens_nothing() -> None:
    new = make_key("acme", "write", (), None, NOW)
    ring = KeyRing([new.key])
    assert ring.find(new.secret) is not None
    for wrong in (new.key.sha256, new.secret[:-1], new.secret + "a", new.secret.upper(), ""):
        assert ring.find(wrong) is None
