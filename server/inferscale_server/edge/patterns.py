"""Regular expressions and grammars by their size: how many parts are left when each `{n,m}` is written out?

Knows: groups, classes, escapes and counted repetitions. Refuses to know: what matches.
"""

from __future__ import annotations

import re

_TOKEN = re.compile(r"\\.|\[(?:\\.|[^\]\\])+\]|\{(\d+)(?:,(\d*))?\}|.", re.DOTALL)
MOST = 10**12
"""Sizes beyond are all the same."""


def written_out(pattern: str) -> int:
    """Parts (characters, classes, escapes) of `pattern` with its counted repetitions written out; at most MOST."""
    groups = [0]  # parts so far of each group that is open
    last = 0  # parts of what a repetition would repeat
    for token in _TOKEN.finditer(pattern):
        if token[1] is not None:
            extra = last * (max(_count(token[1]), _count(token[2])) - 1)
            groups[-1] = min(groups[-1] + max(extra, 0), MOST)
            last += max(extra, 0)
        elif token[0] == "(":
            groups.append(0)
            last = 0
        elif token[0] == ")" and len(groups) > 1:
            last = groups.pop()
            groups[-1] = min(groups[-1] + last, MOST)
        else:
            last = 1
            groups[-1] += 1
    return min(sum(groups), MOST)


def _count(digits: str | None) -> int:
    return int(digits[:7]) if digits else 0
