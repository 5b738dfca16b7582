"""How the operator's commands reach the data folder: themselves, or through the server that holds it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

if TYPE_CHECKING:
    from inferscale_server.config import ServerConfig
    from inferscale_server.data_folder import DataFolder

ADMIN = "/v1/inferscale/admin"
CONNECT_SECONDS = 5.0

DataDirOption = Annotated[Path | None, typer.Option("--data-dir", metavar="DIR", help="Folder that holds the facts.")]
ConfigOption = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="TOML file with options.")]
UrlOption = Annotated[
    str | None, typer.Option("--url", help="The server that holds the folder, if it cannot be found by itself.")
]
KeyOption = Annotated[
    str | None,
    typer.Option("--api-key", envvar="INFERSCALE_API_KEY", show_envvar=True, help="A key with the role admin."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object, for other programs.")]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace what is there.")]

Tell = Callable[[int, int], None]
Answer = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Server:
    """A server that holds a data folder, and how to speak to it."""

    url: str
    api_key: str | None = None
    pid: int | None = None

    def ask(self, verb: str, body: Mapping[str, object], method: str = "POST") -> Answer:
        """Call an admin route and wait, however long it takes. Raises InferScaleError with the server's words."""
        import httpx

        from inferscale_server.errors import InferScaleError

        headers = {} if self.api_key is None else {"authorization": f"Bearer {self.api_key}"}
        timeout = httpx.Timeout(None, connect=CONNECT_SECONDS)
        try:
            with httpx.Client(base_url=self.url, headers=headers, timeout=timeout, trust_env=False) as client:
                response = client.request(method, f"{ADMIN}/{verb}", json=body if method == "POST" else None)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise InferScaleError(f"the server{self._named()} at {self.url} does not answer: {error}") from error
        if response.is_success:
            answer: Answer = response.json()
            return answer
        raise InferScaleError(f"the server{self._named()} at {self.url}: {_said(response)}")

    def _named(self) -> str:
        return "" if self.pid is None else f" (process {self.pid})"


@dataclass(frozen=True, slots=True)
class Way:
    """One way to the stores: `server` when one holds the folder, else None, and the folder is held by us."""

    config: ServerConfig
    server: Server | None
    folder: DataFolder | None


@contextmanager
def reach(data_dir: Path | None, config: Path | None, url: str | None, api_key: str | None) -> Iterator[Way]:
    """The data folder, held for as long as the block lasts, or the server that holds it.

    Raises ConfigError, and DataFolderError when there is no folder or something else than a server holds it, or when a
    server with another data folder holds the facts.
    """
    from inferscale_server.config import load_config
    from inferscale_server.data_folder import DataFolder
    from inferscale_server.errors import DataFolderError, FactsInUse

    settings = load_config({"data_dir": data_dir}, file=config)
    if url is not None:
        yield Way(settings, Server(url, api_key), None)
        return
    if not settings.facts_path.is_file():
        raise DataFolderError(f"there is no fact store {settings.facts_path}")
    try:
        folder = DataFolder.hold(settings.data_path, facts=settings.facts_path)
    except FactsInUse:
        raise
    except DataFolderError:
        holder = DataFolder.holder(settings.data_path)
        if holder is None or holder.url is None:
            raise
        yield Way(settings, Server(holder.url, api_key, holder.pid), None)
        return
    with folder:
        yield Way(settings, None, folder)


@contextmanager
def progress(what: str) -> Iterator[Tell]:
    """A bar on standard error, when that is a terminal."""
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """A spinner on standard error, for what a server does."""
    with Console(stderr=True).status(what):
        yield


def show(answer: Answer, line: str, as_json: bool) -> None:
    """Print a result as JSON or as one line."""
    print(json.dumps(answer, ensure_ascii=False) if as_json else line)


def mib(size: int) -> str:
    """Bytes for a person."""
    return f"{size / 2**20:.1f} MiB"


def _said(response: Any) -> str:
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"HTTP {response.status_code}"
