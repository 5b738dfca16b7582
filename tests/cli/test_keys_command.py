"""Claims about `inferscale keys`: a key is shown once, and what is listed cannot open anything."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from inferscale_server.cli.app import main
from inferscale_server.cli.keys import seconds_of
from inferscale_server.edge.auth import KeyRing
from inferscale_server.edge.keys import read_keys
from inferscale_server.errors import ConfigError


def run(*argv: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["keys", *argv])
    code = ended.value.code
    assert isinstance(code, int)
    return code


def test_what_create_prints_opens_the_door(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "keys")
    users = ("--user", "a", "--user", "b")
    assert run("create", "--tenant", "acme", "--role", "write", *users, "--expires", "30d", file) == 0
    printed = capsys.readouterr()
    [key] = read_keys(tmp_path / "keys")
    assert KeyRing([key]).find(printed.out.strip()) == key
    assert (key.tenant, key.role, key.users) == ("acme", "write", ("a", "b"))
    assert key.expires_at == key.created_at + 30 * 86_400
    assert printed.out.strip() not in printed.err


def test_a_list_shows_no_key_and_no_hash(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "keys")
    run("create", "--tenant", "acme", "--role", "read", file)
    secret = capsys.readouterr().out.strip()
    run("list", file)
    run("list", "--json", file)
    shown = capsys.readouterr().out
    [key] = read_keys(tmp_path / "keys")
    assert key.id in shown and secret not in shown and key.sha256 not in shown
    assert json.loads(shown.splitlines()[-1])["tenant"] == "acme"


def test_a_revoked_key_is_gone_and_the_others_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "keys")
    for role in ("read", "admin"):
        run("create", "--tenant", "acme", "--role", role, file)
    first, second = read_keys(tmp_path / "keys")
    assert run("revoke", first.id, file) == 0
    assert read_keys(tmp_path / "keys") == (second,)
    assert run("revoke", first.id, file) == 2
    assert "no key" in capsys.readouterr().err


def test_the_configured_file_is_used_when_none_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("INFERSCALE_API_KEYS", str(tmp_path / "keys"))
    assert run("create", "--tenant", "acme", "--role", "read") == 0
    assert len(read_keys(tmp_path / "keys")) == 1
    monkeypatch.delenv("INFERSCALE_API_KEYS")
    assert run("list") == 2
    assert "which file" in capsys.readouterr().err


@pytest.mark.parametrize(
    "argv",
    [
        ("--tenant", " acme", "--role", "read"),
        ("--tenant", "acme", "--role", "boss"),
        ("--tenant", "acme", "--role", "admin", "--user", "a"),
        ("--tenant", "acme", "--role", "read", "--user", "a "),
        ("--tenant", "acme", "--role", "read", "--expires", "never"),
    ],
)
def test_a_wrong_option_makes_no_key(tmp_path: Path, argv: tuple[str, ...]) -> None:
    assert run("create", *argv, str(tmp_path / "keys")) == 2
    assert not (tmp_path / "keys").exists()


def test_times_have_units() -> None:
    assert [seconds_of(written) for written in ("90m", "12h", "30d", "2w")] == [5_400, 43_200, 2_592_000, 1_209_600]
    for wrong in ("", "5", "5y", "-1d", "0d", "1.5h", "9" * 9 + "w", "1d "):
        with pytest.raises(ConfigError, match="--expires"):
            seconds_of(wrong)
