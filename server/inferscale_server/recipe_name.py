"""Which recipes can be named. Apart from recipe.py, so that commands check a name without loading numpy."""

from __future__ import annotations

import re

RECIPE = re.compile(r"isolated|header|(primer|session|window|neighbours)(\+(session|window|neighbours))*")
"""`primer` comes first in a combination."""


def check_recipe(name: str) -> str:
    """The name itself. Raises ValueError for one that names no recipe, or a part of it twice."""
    parts = name.split("+")
    if RECIPE.fullmatch(name) is None or len(set(parts)) < len(parts):
        raise ValueError(
            "use isolated, header, primer, session, window, neighbours, or a combination such as primer+session"
        )
    return name
