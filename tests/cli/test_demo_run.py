"""The demo's steps against a small real server, and the life of its own server process."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from rich.console import Console

from inferscale_sdk import InferScaleClient
from inferscale_server.cli import main
from inferscale_server.demo import server, show, ttft
from inferscale_server.demo.conversations import load_memories
from inferscale_server.errors import StartupError
from tests.cli.small_server import small_server

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def client() -> Iterator[InferScaleClient]:
    with small_server() as url, InferScaleClient(base_url=url) as made:
        yield made


def silent(_: str) -> None:
    """Takes progress and shows none."""


def test_every_session_is_remembered(client: InferScaleClient) -> None:
    told: list[str] = []
    show.remember(client, load_memories(), told.append)
    assert told[0] == "remembering mara's conversation of 2025-01-11"
    assert len(told) == sum(len(memory.sessions) for memory in load_memories())


def test_every_question_is_asked_in_every_mode_and_shown(client: InferScaleClient) -> None:
    shown = io.StringIO()
    questions = load_memories()[0].questions[:2]
    answers = show.ask_all(client, Console(file=shown, width=200), questions)
    assert [(answer.asked, answer.served) for answer in answers] == [(m, m) for m in ("off", "text", "kv")] * 2
    assert [answer.right for answer in answers[:3]] == [False, True, True]
    assert answers[2].facts == ("Bruno is [old].",)
    assert "Bruno is [old]." in shown.getvalue() and questions[1].text in shown.getvalue()


def test_both_modes_are_timed_for_each_number_of_facts(client: InferScaleClient) -> None:
    samples = ttft.measure(client, load_memories()[0].questions[:2], 5)
    assert len(samples) == 4
    assert all(sample.k == 5 and sample.injected_tokens == 9 and sample.ttft_ms > 0 for sample in samples)


def test_a_demo_that_shows_too_little_exits_1(
    client: InferScaleClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The small server says the same to every question, so most answers are wrong."""

    @contextmanager
    def running(*args: object) -> Iterator[InferScaleClient]:
        yield client

    monkeypatch.setattr(show, "running_server", running)
    with pytest.raises(SystemExit) as ended:
        main(["demo", "--out", str(tmp_path / "out")])
    assert ended.value.code == 1
    assert "only 1 of 12 answers are right" in capsys.readouterr().out
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"demo.html", "ttft.png"}


def test_a_server_that_does_not_start_is_one_line_with_its_last_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _serve_with(monkeypatch, [sys.executable, "-c", "print('no such model\\n'); raise SystemExit(3)"])
    with (
        pytest.raises(StartupError, match=r"^the server ended with code 3; .*log ends with: no such model$"),
        server.running_server(tmp_path, tmp_path / "log", (), silent),
    ):
        pass


def test_a_server_of_our_own_inherits_no_setting_but_the_cache_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in {"FACTS_URL": "sqlite:////srv/facts", "CONFIG": "/etc/x.toml", "CACHE_DIR": "/c"}.items():
        monkeypatch.setenv(f"INFERSCALE_{name}", value)
    code = "import os; print(sorted(n + '=' + v for n, v in os.environ.items() if n.startswith('INFERSCALE_')))"
    _serve_with(monkeypatch, [sys.executable, "-c", f"{code}; raise SystemExit(3)"])
    settings = {"INFERSCALE_RECIPE": "isolated"}
    with (
        pytest.raises(StartupError),
        server.running_server(tmp_path, tmp_path / "log", (), silent, settings=settings),
    ):
        pass
    assert (tmp_path / "log").read_text() == "['INFERSCALE_CACHE_DIR=/c', 'INFERSCALE_RECIPE=isolated']\n"


def test_the_server_is_stopped_even_when_the_demo_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    port = server.free_port()
    monkeypatch.setattr(server, "free_port", lambda: port)
    _serve_with(monkeypatch, [sys.executable, "-m", "tests.cli.small_server", str(port)])
    monkeypatch.chdir(ROOT)
    started: list[subprocess.Popen[bytes]] = []
    stop = server.stop
    monkeypatch.setattr(server, "stop", lambda process: (started.append(process), stop(process)))
    with (
        pytest.raises(ZeroDivisionError),
        server.running_server(tmp_path, tmp_path / "log", (), silent) as client,
    ):
        assert client.status().model == "tiny"
        raise ZeroDivisionError
    assert started[0].returncode == -signal.SIGTERM


def test_a_server_that_will_not_stop_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "STOP_TIMEOUT_S", 0.01)
    deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
    process = subprocess.Popen([sys.executable, "-c", deaf], stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None and process.stdout.readline() == b"deaf\n"
    server.stop(process)
    process.stdout.close()
    assert process.returncode == -signal.SIGKILL


def test_sigterm_unwinds_like_an_exception_and_only_inside() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended, server.sigterm_unwinds():
        signal.raise_signal(signal.SIGTERM)
    assert ended.value.code == 143
    assert signal.getsignal(signal.SIGTERM) == before


def test_the_servers_command_line_is_ours() -> None:
    argv = server.serve_command(8123, Path("/d"), ("--dtype", "float32"))
    assert argv[1:4] == ["-m", "inferscale_server.cli", "serve"]
    assert argv[-3:] == ["--", "--dtype", "float32"]
    assert "--" not in server.serve_command(8123, Path("/d"), ())


def _serve_with(monkeypatch: pytest.MonkeyPatch, argv: list[str]) -> None:
    monkeypatch.setattr(server, "POLL_S", 0.01)

    def command(
        port: int, data: Path, vllm_args: Sequence[str], model: str | None, options: Sequence[str]
    ) -> list[str]:
        return argv

    monkeypatch.setattr(server, "serve_command", command)
