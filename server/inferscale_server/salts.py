"""Cache salts: which requests may share blocks of vLLM's prefix cache.

A salt separates owner, mode, plan, fingerprint and the owner's epoch. It is keyed by a secret of this process, because
vLLM's hash seed is public. Text computed after KV under one salt gave wrong tokens, so a plan whose claim came out
shorter than planned retires its salt.
"""

from __future__ import annotations

import hmac
from collections import OrderedDict
from hashlib import sha256

from inferscale_server.types import Owner

MAX_RETIRED = 10_000
TEXT = "text"


class Salts:
    """Makes salts. Nobody outside this process can."""

    def __init__(self, secret: bytes, fingerprint: str) -> None:
        self._secret = secret
        self._fingerprint = fingerprint
        self._retired: OrderedDict[str, int] = OrderedDict()

    def of(self, owner: Owner | None, epoch: int, plan_digest: str = TEXT) -> str:
        """64 hex characters. Without an owner: requests that name no user, which share one salt among themselves."""
        who = "nobody" if owner is None else owner.digest()
        model = self._fingerprint if owner is None or not owner.adapter else owner.adapter
        parts = (who, model, plan_digest, str(epoch), str(self._retired.get(plan_digest, 0)))
        return hmac.new(self._secret, "|".join(parts).encode(), sha256).hexdigest()

    def retire(self, plan_digest: str) -> None:
        """The next request with this plan gets another salt."""
        self._retired[plan_digest] = self._retired.pop(plan_digest, 0) + 1
        while len(self._retired) > MAX_RETIRED:
            self._retired.popitem(last=False)
