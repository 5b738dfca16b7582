"""The command line: what it takes, what it prints, how it ends."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from inferscale_sdk import __version__
from inferscale_server.cli import app, main, serve
from inferscale_server.config import ServerConfig
from tests.cli.small_server import small_server

Run = Callable[..., int]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with small_server() as address:
        yield address


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command in this process; returns its exit code."""
    for name in ("INFERSCALE_BASE_URL", "INFERSCALE_API_KEY", "INFERSCALE_PORT"):
        monkeypatch.delenv(name, raising=False)

    def run(*argv: str) -> int:
        with pytest.raises(SystemExit) as ended:
            main(argv)
        assert isinstance(ended.value.code, int)
        return ended.value.code

    return run


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[tuple[ServerConfig, list[str]]]:
    """What `serve` would have started."""
    calls: list[tuple[ServerConfig, list[str]]] = []
    monkeypatch.setattr(serve, "run", lambda config, vllm_args: calls.append((config, vllm_args)))
    return calls


def test_help_imports_neither_torch_nor_vllm() -> None:
    code = (
        "import sys; from inferscale_server.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "print(sorted({'torch', 'vllm', 'transformers', 'matplotlib', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert "doctor" in done.stdout and "memories" in done.stdout


def test_every_option_of_the_server_has_its_words() -> None:
    assert serve.HELP.keys() == ServerConfig.model_fields.keys() - {"model"}


def test_serve_passes_model_options_and_vllm_flags_on(run: Run, served: list[tuple[ServerConfig, list[str]]]) -> None:
    argv = (
        "serve",
        "org/m",
        "--port",
        "9000",
        "--kv-device-gib",
        "0.5",
        "--index",
        "exact",
        "--",
        "--dtype",
        "float32",
    )
    assert run(*argv) == 0
    config = ServerConfig(model="org/m", port=9000, kv_device_gib=0.5, index="exact")
    assert served == [(config, ["--dtype", "float32"])]


def test_vllm_flags_are_not_taken_for_the_model(run: Run, served: list[tuple[ServerConfig, list[str]]]) -> None:
    assert run("serve", "--", "--max-model-len", "4096") == 0
    assert served == [(ServerConfig(), ["--max-model-len", "4096"])]


def test_a_flag_wins_over_the_environment_and_that_over_the_file(
    run: Run, served: list[tuple[ServerConfig, list[str]]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "c.toml").write_text("port = 1111\nk = 3\nprimer_facts = 4\n")
    monkeypatch.setenv("INFERSCALE_PORT", "2222")
    monkeypatch.setenv("INFERSCALE_K", "5")
    assert run("serve", "--config", str(tmp_path / "c.toml"), "--port", "3333") == 0
    assert served == [(ServerConfig(port=3333, k=5, primer_facts=4), [])]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("--port", "http"), ("port", "http")),
        (("--index", "hnsw"), ("index", "hnsw")),
        (("--host", "0.0.0.0"), ("0.0.0.0", "--insecure")),
        (("--facts-url", "postgresql://x"), ("facts_url", "postgresql://x")),
        (("--config", "/nowhere.toml"), ("/nowhere.toml",)),
    ],
)
def test_a_bad_option_is_one_line_that_names_it(
    run: Run,
    served: list[tuple[ServerConfig, list[str]]],
    capsys: pytest.CaptureFixture[str],
    argv: tuple[str, ...],
    words: tuple[str, ...],
) -> None:
    assert run("serve", *argv) == 2
    error = capsys.readouterr().err
    assert error.startswith("inferscale: ") and len(error.splitlines()) == 1
    assert all(word in error for word in words)
    assert served == []


def test_an_unknown_option_is_refused(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("serve", "--prot", "1") == 2
    assert "--prot" in capsys.readouterr().err


def test_ctrl_c_is_quiet(run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(config: ServerConfig, vllm_args: list[str]) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(serve, "run", interrupted)
    assert run("serve") == 130
    assert capsys.readouterr().err == ""


def test_a_line_break_in_an_error_stays_on_one_line() -> None:
    assert app.one_line(ValueError("one\n  two")) == "one two"


def test_no_server_is_one_line(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("memories", "get", "f1", "--user", "alice", "--url", "http://127.0.0.1:9") == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_an_address_that_is_none_is_refused(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("memories", "list", "--user", "alice", "--url", "ftp://x") == 2
    assert "ftp://x" in capsys.readouterr().err


def test_facts_are_listed_for_programs_as_json_lines(run: Run, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("memories", "list", "--user", "alice", "--json", "--url", url) == 0
    assert [json.loads(line)["id"] for line in capsys.readouterr().out.splitlines()] == ["f1", "f2"]


def test_a_limit_cuts_the_list(run: Run, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("memories", "list", "--user", "alice", "--limit", "1", "--json", "--url", url) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_facts_are_listed_for_people_as_they_were_written(
    run: Run, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Square brackets are the terminal library's markup: a fact's own must survive."""
    assert run("memories", "list", "--user", "alice", "--url", url) == 0
    out = capsys.readouterr().out
    assert "Bruno is [old]." in out and "1970-01-01 00:00" in out


def test_add_says_what_became_of_each_fact(run: Run, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ("memories", "add", "Bruno is a dog.", "--user", "alice", "--speaker", "Alice", "--time", "2025-01-02")
    assert run(*argv, "--json", "--url", url) == 0
    assert json.loads(capsys.readouterr().out)["status"] == "stored"


def test_add_fails_when_a_fact_failed(run: Run, url: str) -> None:
    assert run("memories", "add", "Bruno is a dog.", " ", "--user", "alice", "--url", url) == 1


def test_search_get_and_delete_reach_the_server(run: Run, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    common = ("--user", "alice", "--json", "--url", url)
    assert run("memories", "search", "dog", *common) == 0
    assert run("memories", "get", "f1", *common) == 0
    assert run("memories", "delete", "f1", *common) == 0
    found, fact, deleted = map(json.loads, capsys.readouterr().out.splitlines())
    assert (found["score"], fact["id"], deleted) == (0.75, "f1", {"id": "f1", "deleted": True})


def test_a_fact_that_is_not_there_is_one_line(run: Run, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("memories", "delete", "f9", "--user", "alice", "--url", url) == 2
    assert capsys.readouterr().err == "inferscale: no such fact\n"


def test_chat_prints_the_answer_and_what_it_was_given(
    run: Run, url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("What is my dog called?\n\n/quit\nnever asked\n"))
    assert run("chat", "--user", "alice", "--mode", "kv", "--k", "3", "--url", url) == 0
    out = capsys.readouterr().out
    assert out.count("Bruno\n") == 1
    assert "kv, 9 tokens injected, first token after 42 ms (asked)" in out
    assert "0.50  Bruno is [old]." in out


def test_chat_ends_at_the_end_of_its_input(run: Run, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert run("chat", "--user", "alice", "--url", url) == 0


def test_the_version_is_told(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--version") == 0
    assert capsys.readouterr().out == f"inferscale {__version__}\n"


def test_chat_takes_a_key_from_its_command_line(run: Run, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("chat", "--user", "alice", "--api-key", "not a key", "--url", url) == 2
    assert "api_key" in capsys.readouterr().err
