"""The port of a server is its own from the first second: kept from others that start, and free once it has ended."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from inferscale_server.cli import main
from inferscale_server.config import ServerConfig
from inferscale_server.demo.server import free_port
from inferscale_server.engine.launch import checked_start
from inferscale_server.engine.port import held_port, overlap
from inferscale_server.errors import ConfigError, ModelUnavailable, PortInUse

START = """
import sys, time
from pathlib import Path
from inferscale_server.config import ServerConfig
from inferscale_server.engine.launch import checked_start
with checked_start(ServerConfig(data_dir=Path(sys.argv[1]), port=int(sys.argv[2])), ()):
    print("loading", flush=True)
    time.sleep(600)
"""

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="claims are Linux's")


def refused(host: str, port: int) -> bool:
    try:
        with held_port(host, port):
            return False
    except PortInUse:
        return True


@linux
def test_a_second_server_is_refused_while_the_first_still_loads_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    port, other = free_port(), tmp_path / "other"
    command = [sys.executable, "-c", START, str(tmp_path / "first"), str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None and first.stdout.readline() == "loading\n"
        with pytest.raises(SystemExit) as ended:
            main(["serve", "--port", str(port), "--data-dir", str(other)])
        first.kill()
    assert ended.value.code == 2 and not other.exists()
    (line,) = capsys.readouterr().err.splitlines()
    assert f"port {port} on 127.0.0.1 is in use by another server" in line and "--port" in line
    with checked_start(ServerConfig(data_dir=other, port=port), ()):  # the first was killed, and took its claim along
        assert other.is_dir()


def test_a_listener_of_any_program_is_seen() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(PortInUse, match=f"port {port} on localhost"), held_port("localhost", port):
            pass


def test_a_port_whose_connections_linger_is_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            served, _ = listener.accept()
            served.close()  # the side that closes first keeps the port in TIME_WAIT
            assert client.recv(1) == b""
    assert not refused("127.0.0.1", port)
    with socket.socket() as eager, pytest.raises(OSError):
        eager.bind(("127.0.0.1", port))


@linux
def test_the_holder_itself_can_listen_and_its_end_frees_the_port() -> None:
    port = free_port()
    with held_port("127.0.0.1", port):
        assert refused("127.0.0.1", port) and refused("localhost", port) and refused("0.0.0.0", port)
        assert not refused("127.0.0.2", port) and not refused("127.0.0.1", free_port())
        with socket.create_server(("127.0.0.1", port)):
            pass
    assert not refused("127.0.0.1", port)
    with held_port("0.0.0.0", port):
        assert refused("127.0.0.2", port)


@pytest.mark.parametrize(
    ("one", "other", "meet"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("127.0.0.1", "10.0.0.7", False),
        ("0.0.0.0", "10.0.0.7", True),
        ("0.0.0.0", "::1", False),
        ("::", "10.0.0.7", True),
        ("::", "::1", True),
        ("::1", "127.0.0.1", False),
    ],
)
def test_who_gets_in_whose_way(one: str, other: str, meet: bool) -> None:
    assert overlap(one, other) is overlap(other, one) is meet


def test_an_address_of_another_machine_is_no_port_in_use() -> None:
    with pytest.raises(ConfigError, match=r"cannot listen on 192\.0\.2\.1"), held_port("192.0.2.1", free_port()):
        pass


@pytest.mark.parametrize("made", [True, False], ids=["no config.json", "no folder"])
def test_a_server_without_a_model_leaves_no_data_folder(tmp_path: Path, made: bool) -> None:
    model, data = tmp_path / "model", tmp_path / "data"
    if made:
        model.mkdir()
    config = ServerConfig(model=str(model), data_dir=data, port=free_port())
    with pytest.raises(ModelUnavailable, match=str(model)), checked_start(config, ()):
        pass
    assert not data.exists()
