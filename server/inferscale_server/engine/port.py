"""The port that a server will listen on, held from its first second.

vLLM binds early and listens late: until the model is loaded nobody who binds sees it, because both reuse the address,
as a quick restart needs. So a server that starts leaves word for others: a bound abstract unix socket, which lives in
the network namespace that the port lives in, blocks no restart, and goes with its process however that ends.
"""

from __future__ import annotations

import errno
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from inferscale_server.errors import ConfigError, PortInUse

CLAIM = "inferscale-port"
SOCKETS = Path("/proc/net/unix")
"""Linux's list of unix sockets; the name of an abstract one begins with @."""
ANY_V4, ANY = "0.0.0.0", "::"
"""All addresses of IPv4, and of both: Linux lets a socket on the latter take IPv4 as well."""


@contextmanager
def held_port(host: str, port: int) -> Iterator[None]:
    """Keep other servers off `host` and `port` until the end of the block.

    Raises PortInUse where a process listens there, or another server that is still starting will; ConfigError where
    nobody can listen. Off Linux only who listens is seen.
    """
    address = bindable(host, port)
    if not sys.platform.startswith("linux"):
        yield
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as claim:
        try:
            claim.bind("\0" + _name(address, port))
        except OSError:
            raise _claimed(host, port) from None
        # After our own claim, so that of two servers that start at once at least one sees the other.
        if any(overlap(address, other) for other in _claims(port) if other != address):
            raise _claimed(host, port)
        yield


def bindable(host: str, port: int) -> str:
    """The address that `host` means. Raises PortInUse where somebody listens, ConfigError where nobody can."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise PortInUse(f"port {port} on {host} is in use by another process: choose another --port") from None
            raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
        return str(probe.getsockname()[0])


def overlap(one: str, other: str) -> bool:
    """Whether two listeners on one port get in each other's way, by their numeric addresses."""
    pair = {one, other}
    return len(pair) == 1 or ANY in pair or (ANY_V4 in pair and not any(":" in address for address in pair))


def _name(address: str, port: int) -> str:
    return f"{CLAIM}/{port}/{address}"


def _claims(port: int) -> list[str]:
    """Addresses on which servers hold this port, ours among them; none where the list cannot be read."""
    try:
        names = (line.rsplit(" ", 1)[-1] for line in SOCKETS.read_text("utf-8", "replace").splitlines())
    except OSError:
        return []
    begin = "@" + _name("", port)
    return [name.removeprefix(begin) for name in names if name.startswith(begin)]


def _claimed(host: str, port: int) -> PortInUse:
    return PortInUse(
        f"port {port} on {host} is in use by another server, which is starting or stopping: choose another --port"
    )
