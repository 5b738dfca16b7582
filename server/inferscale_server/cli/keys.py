"""`inferscale keys`: make, list and revoke API keys in the file that `serve --api-keys` reads."""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from inferscale_server.cli.command import CommandLine
from inferscale_server.config import load_config
from inferscale_server.edge.identity import Role
from inferscale_server.edge.keys import ApiKey, change_keys, iso, make_key, read_keys
from inferscale_server.errors import ConfigError

app = CommandLine(help="Make, list and revoke API keys.", no_args_is_help=True)

UNIT_SECONDS = {"m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
MAX_VALID_S = 100 * 366 * UNIT_SECONDS["d"]
HINT = "a running server reads the file again on SIGHUP"

FILE_HELP = "File of API keys; without it, the one that the configuration names (api_keys)."
FileArgument = Annotated[Path | None, typer.Argument(metavar="FILE", help=FILE_HELP, show_default=False)]
TenantOption = Annotated[str, typer.Option("--tenant", help="Whose memories: tenants never see each other's.")]
RoleOption = Annotated[Role, typer.Option("--role", help="read; write: also add and delete; admin: also operate.")]
UserOption = Annotated[list[str] | None, typer.Option("--user", help="Only for this user; may be given again.")]
ExpiresOption = Annotated[
    str | None,
    typer.Option("--expires", metavar="30d", help="Valid for so long: 90m, 12h, 30d or 2w."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object a line, for other programs.")]
IdArgument = Annotated[str, typer.Argument(metavar="ID", help="Id of the key, as listed.", show_default=False)]


@app.command()
def create(
    tenant: TenantOption,
    role: RoleOption,
    file: FileArgument = None,
    user: UserOption = None,
    expires: ExpiresOption = None,
) -> None:
    """Make a key and print it, once: the file keeps only its hash."""
    now = time.time()
    expires_at = None if expires is None else now + seconds_of(expires)
    new = make_key(tenant, role, user or (), expires_at, now)
    change_keys(_file(file), lambda keys: (*keys, new.key))
    print(f"key {new.key.id} for {tenant!r}, {role}; it is not shown again; {HINT}", file=sys.stderr)
    print(new.secret)


@app.command(name="list")
def list_(file: FileArgument = None, as_json: JsonOption = False) -> None:
    """List the keys' ids, tenants and roles."""
    keys = read_keys(_file(file))
    if as_json:
        for key in keys:
            print(json.dumps(_row(key)))
        return
    Console().print(_table(keys, time.time()))


@app.command()
def revoke(key_id: IdArgument, file: FileArgument = None) -> None:
    """Remove a key from the file."""
    change_keys(_file(file), lambda keys: _without(keys, key_id))
    print(f"revoked {key_id}; {HINT}")


def seconds_of(written: str) -> float:
    """`90m`, `12h`, `30d` or `2w` in seconds. Raises ConfigError."""
    found = re.fullmatch(r"([0-9]{1,9})([mhdw])", written)
    seconds = int(found[1]) * UNIT_SECONDS[found[2]] if found else 0
    if not 0 < seconds <= MAX_VALID_S:
        raise ConfigError(
            f"--expires: value {written!r} is not a time: a whole number of minutes, hours, days or weeks, "
            "at most a century, such as 90m, 12h, 30d or 2w"
        )
    return float(seconds)


def _file(given: Path | None) -> Path:
    file = given or load_config({}).api_keys
    if file is None:
        raise ConfigError("which file of API keys? name it, or set INFERSCALE_API_KEYS")
    return file


def _without(keys: tuple[ApiKey, ...], key_id: str) -> tuple[ApiKey, ...]:
    left = tuple(key for key in keys if key.id != key_id)
    if len(left) == len(keys):
        raise ConfigError(f"there is no key {key_id!r}")
    return left


def _row(key: ApiKey) -> dict[str, object]:
    """What may be shown of a key: neither the key nor its hash."""
    return {
        "id": key.id,
        "tenant": key.tenant,
        "role": key.role,
        "users": None if key.users is None else list(key.users),
        "created_at": iso(key.created_at),
        "expires_at": None if key.expires_at is None else iso(key.expires_at),
    }


def _table(keys: tuple[ApiKey, ...], now: float) -> Table:
    table = Table(*(Column(name, overflow="fold") for name in ("id", "tenant", "role", "users", "created", "expires")))
    for key in keys:
        users = "all" if key.users is None else ", ".join(key.users)
        expires = "never" if key.expires_at is None else iso(key.expires_at)
        expires += " (expired)" if key.expired(now) else ""
        cells = (key.id, key.tenant, key.role, users, iso(key.created_at), expires)
        table.add_row(*map(Text, cells))
    return table
