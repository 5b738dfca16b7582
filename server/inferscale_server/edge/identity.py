"""Who a request speaks for: a tenant, a role, and the users that it may name.

Knows: roles and their order, and where the guard leaves the identity. Refuses to know: keys, and how they are checked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from inferscale_server.errors import Forbidden
from inferscale_server.types import LOCAL_TENANT, Owner

if TYPE_CHECKING:  # `inferscale keys` runs where there is no web server
    from starlette.requests import HTTPConnection
    from starlette.types import Scope

Role = Literal["read", "write", "admin"]
"""What a key may do; each role includes the ones before it."""

ROLES: tuple[Role, ...] = get_args(Role)


@dataclass(frozen=True, slots=True)
class Identity:
    """The caller. `users` is None when all of the tenant's users may be named; `key_id` is None without API keys."""

    tenant: str
    role: Role
    users: frozenset[str] | None = None
    key_id: str | None = None

    def may(self, user: str) -> bool:
        """May this caller name `user`?"""
        return self.users is None or user in self.users

    def has(self, role: Role) -> bool:
        """Does this caller's role include `role`?"""
        return ROLES.index(self.role) >= ROLES.index(role)

    def require(self, role: Role) -> None:
        """Raise Forbidden (code `insufficient_role`) unless this caller's role includes `role`."""
        if not self.has(role):
            raise Forbidden(f"this needs the role {role}, the key has {self.role}", code="insufficient_role")

    @property
    def anonymous(self) -> Owner:
        """The owner of what this tenant's callers do without naming a user; no user id is empty."""
        return Owner(self.tenant, "")

    def owner(self, user: str, param: str = "user_id") -> Owner:
        """The owner called `user` (a checked id). Raises Forbidden (code `user_not_allowed`) outside the key's list."""
        if not self.may(user):
            raise Forbidden("the key is not for this user", code="user_not_allowed", param=param)
        return Owner(self.tenant, user)


LOCAL = Identity(LOCAL_TENANT, "admin")
"""The caller on a server without API keys."""


def identity_of(connection: HTTPConnection) -> Identity:
    """The caller of a request that came through the guard; without a guard there are no keys, and it is LOCAL."""
    identity = connection.scope.get("state", {}).get("identity", LOCAL)
    assert isinstance(identity, Identity), type(identity)
    return identity


def with_identity(scope: Scope, identity: Identity) -> Scope:
    """A scope that carries `identity` to `identity_of`."""
    return {**scope, "state": {**scope.get("state", {}), "identity": identity}}
