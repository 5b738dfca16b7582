"""backup, restore, verify and gc: by themselves, and through the server that holds the folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from inferscale_server.cli import doctor, main
from inferscale_server.config import ServerConfig, load_config
from inferscale_server.data_folder import DataFolder, Holder, server_url
from inferscale_server.engine.launch import check_stores, checked_start
from inferscale_server.errors import FactsInUse, StoreCorrupt
from tests.cli.held_folder import held
from tests.memory.fakes import FakeEmbedder
from tests.memory.stores import damage, filled, texts_in

Run = Callable[..., int]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command in this process; returns its exit code."""
    for name in [name for name in os.environ if name.startswith("INFERSCALE_")]:
        monkeypatch.delenv(name)

    def run(*argv: object) -> int:
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in argv])
        assert isinstance(ended.value.code, int)
        return ended.value.code

    return run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    path.mkdir()
    filled(path / "facts.sqlite3", "one", "two")
    return path


@pytest.fixture(scope="module")
def held_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("held")
    filled(path / "facts.sqlite3", "one", "two")
    with held(path):
        yield path


def test_a_backup_is_restored_elsewhere(
    run: Run, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("backup", tmp_path / "b", "--data-dir", folder) == 0
    assert f"2 facts in {tmp_path / 'b'}" in capsys.readouterr().out
    assert run("restore", tmp_path / "b", "--data-dir", tmp_path / "new", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"facts": 2, "replaced_facts": 0, "kept": None}
    assert texts_in(tmp_path / "new" / "facts.sqlite3") == ["one", "two"]


def test_what_exists_is_replaced_only_with_force(
    run: Run, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("backup", tmp_path / "b", "--data-dir", folder) == 0
    for argv in (("backup", tmp_path / "b", "--data-dir", folder), ("restore", tmp_path / "b", "--data-dir", folder)):
        capsys.readouterr()
        assert run(*argv) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1
        assert run(*argv, "--force") == 0


def test_verify_of_a_sound_store_is_a_table_and_0(run: Run, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("verify", "--data-dir", folder) == 0
    captured = capsys.readouterr()
    assert "2 of 1 users" in captured.out and captured.err == ""


def test_verify_of_a_corrupt_store_is_one_line_and_1(
    run: Run, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    filled(folder / "facts.sqlite3", *(f"fact {i}" for i in range(200)))
    damage(folder / "facts.sqlite3")
    assert run("verify", "--data-dir", folder) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("inferscale verify: file: ") and "damaged" in line
    assert run("verify", "--data-dir", folder, "--json") == 1
    assert json.loads(capsys.readouterr().out)["ok"] is False


def test_serve_refuses_a_corrupt_store_and_names_the_command(folder: Path) -> None:
    filled(folder / "facts.sqlite3", *(f"fact {i}" for i in range(200)))
    damage(folder / "facts.sqlite3")
    before = (folder / "facts.sqlite3").read_bytes()
    with pytest.raises(StoreCorrupt, match=f"inferscale restore FILE --data-dir {folder}"):
        check_stores(ServerConfig(data_dir=folder))
    assert (folder / "facts.sqlite3").read_bytes() == before


def test_doctor_looks_at_the_store_and_names_verify(folder: Path) -> None:
    sound = doctor.check_store(folder / "facts.sqlite3")
    assert sound.reason is None and "inferscale verify" in sound.found
    assert doctor.check_store(folder / "none").reason is None
    (folder / "facts.sqlite3").write_bytes(b"hello")
    assert "inferscale verify" in (doctor.check_store(folder / "facts.sqlite3").reason or "")


def test_gc_says_the_bytes_before_and_after(run: Run, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("gc", "--data-dir", folder, "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["bytes_after"] == (folder / "facts.sqlite3").stat().st_size
    assert run("gc", "--data-dir", folder) == 0
    assert "MiB -> " in capsys.readouterr().out


@pytest.mark.parametrize("command", [("backup", "b"), ("verify",), ("gc",)])
def test_a_folder_without_facts_is_one_line_and_not_created(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    assert run(*command, "--data-dir", tmp_path / "none") == 2
    assert str(tmp_path / "none") in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_the_server_that_holds_the_folder_does_the_work(
    run: Run, held_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("backup", tmp_path / "b", "--data-dir", held_folder) == 0
    assert texts_in(tmp_path / "b") == ["one", "two"]
    assert run("verify", "--data-dir", held_folder) == 0
    capsys.readouterr()
    assert run("gc", "--data-dir", held_folder, "--json", "--tombstone-days", "0") == 0
    assert json.loads(capsys.readouterr().out)["tombstones"] == 0


def test_a_server_embeds_its_facts_anew(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    filled(tmp_path / "facts.sqlite3", "one", "two")
    with held(tmp_path):
        assert run("reindex", "--embedder", "fake-8", "--data-dir", tmp_path) == 0
        assert "2 facts embedded with fake-8; start the server with --embedder fake-8" in capsys.readouterr().out
        assert run("verify", "--data-dir", tmp_path) == 0
    assert "fake-8 (8 dimensions)" in capsys.readouterr().out


def test_facts_are_embedded_anew_without_a_server(
    run: Run, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inferscale_server.embed.load_embedder", lambda name, *_: FakeEmbedder(name, 8))
    assert run("reindex", "--embedder", "fake-8", "--data-dir", folder, "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"facts": 2, "embedder": "fake-8"}
    assert run("verify", "--data-dir", folder) == 0


def test_what_a_server_refuses_is_one_line_with_its_words(
    run: Run, held_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "b").write_text("dear")
    assert run("backup", tmp_path / "b", "--data-dir", held_folder, "--force") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "is not a backup" in line and "http://127.0.0.1:" in line


def test_a_folder_that_a_server_holds_is_not_restored(
    run: Run, held_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("backup", tmp_path / "b", "--data-dir", held_folder) == 0
    assert run("restore", tmp_path / "b", "--data-dir", held_folder, "--force") == 2
    assert "in use" in capsys.readouterr().err


HOLD = """
import sys
from pathlib import Path
from inferscale_server.data_folder import DataFolder
folder = DataFolder.hold(Path(sys.argv[1]), *sys.argv[2:])
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("url", "words"),
    [((), "in use"), (("http://127.0.0.1:9",), "http://127.0.0.1:9 does not answer")],
    ids=["a command", "a server that does not answer"],
)
def test_a_folder_that_cannot_be_reached_is_one_line(
    run: Run, folder: Path, capsys: pytest.CaptureFixture[str], url: tuple[str, ...], words: str
) -> None:
    command = [sys.executable, "-c", HOLD, str(folder), *url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        assert DataFolder.holder(folder) == Holder(other.pid, *url)
        assert run("verify", "--data-dir", folder) == 2
        other.kill()
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line


HOLD_FACTS = """
import sys
from pathlib import Path
from inferscale_server.data_folder import DataFolder
folder = DataFolder.hold(Path(sys.argv[1]), "http://127.0.0.1:9", Path(sys.argv[2]))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("linked", [False, True], ids=["by its path", "by a link"])
@pytest.mark.parametrize("of_other", ["facts elsewhere", "facts in its data folder"])
def test_facts_that_a_server_with_another_data_folder_holds_are_not_touched_in_one_line(
    run: Run,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    linked: bool,
    of_other: str,
) -> None:
    facts, mine = folder / "facts.sqlite3", tmp_path / "mine"
    assert run("backup", tmp_path / "b", "--data-dir", folder) == 0
    theirs = folder if of_other == "facts in its data folder" else tmp_path / "theirs"
    named = tmp_path / "link.sqlite3" if linked else facts
    if linked:
        named.symlink_to(facts)
    monkeypatch.setenv("INFERSCALE_FACTS_URL", f"sqlite:///{named}")
    before = facts.read_bytes()
    commands = (["gc"], ["verify"], ["reindex", "--embedder", "minilm"], ["restore", str(tmp_path / "b"), "--force"])
    command = [sys.executable, "-c", HOLD_FACTS, str(theirs), str(facts)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        for words in commands:
            capsys.readouterr()
            assert run(*words, "--data-dir", mine) == 2
            (line,) = capsys.readouterr().err.splitlines()
            assert f"fact store {named} is in use by the server at http://127.0.0.1:9" in line
        with pytest.raises(FactsInUse), checked_start(load_config({"data_dir": mine, "port": 18_431}), ()):
            pass
        other.kill()
    assert facts.read_bytes() == before
    assert run("verify", "--data-dir", mine) == 0


def test_what_a_dead_server_wrote_does_not_matter(run: Run, folder: Path) -> None:
    (folder / "lock").write_text(json.dumps({"pid": 1, "url": "http://127.0.0.1:9"}))
    assert run("verify", "--data-dir", folder) == 0


def test_a_lock_file_of_an_older_version_names_nobody(folder: Path) -> None:
    for content in ("", "7", "[]", '{"pid": 1, "more": 2}', "\xff"):
        (folder / "lock").write_text(content)
        assert DataFolder.holder(folder) is None


def test_all_addresses_of_this_machine_are_called_by_one_that_works() -> None:
    assert server_url("0.0.0.0", 8000) == "http://127.0.0.1:8000"
    assert server_url("::", 8000) == server_url("::1", 8000) == "http://[::1]:8000"
    assert server_url("10.0.0.7", 80) == "http://10.0.0.7:80"
