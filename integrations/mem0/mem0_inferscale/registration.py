"""Makes mem0 know a vector store called `inferscale`.

Knows: the three places where mem0 2.2 looks a provider up; it has no hook for one outside its own tree. Refuses to
know: what the store does.
"""

from __future__ import annotations

import sys

from mem0.utils.factory import VectorStoreFactory
from mem0.vector_stores.configs import VectorStoreConfig

from mem0_inferscale import config

PROVIDER = "inferscale"


def register() -> None:
    """Make `{"vector_store": {"provider": "inferscale"}}` work; can be called again. Raises ImportError if mem0 has
    changed so that it cannot be done."""
    providers = getattr(VectorStoreConfig, "__private_attributes__", {}).get("_provider_configs")
    if providers is None or not isinstance(providers.default, dict):
        raise ImportError("this version of mem0ai keeps its providers elsewhere: use mem0ai>=2.2,<2.3")
    providers.default[PROVIDER] = config.InferScaleConfig.__name__
    VectorStoreFactory.provider_to_class[PROVIDER] = "mem0_inferscale.store.InferScaleVectorStore"
    sys.modules[f"mem0.configs.vector_stores.{PROVIDER}"] = config
