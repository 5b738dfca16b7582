"""Token F1 of a generated answer against the gold one, after LoCoMo's evaluation (Maharana et al., ACL 2024). Pure.

Lower case, without punctuation, articles and "and", each word by its stem. Multi-hop answers are lists: each gold part
is compared with the generated part nearest to it.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from statistics import fmean

from inferscale_server.bench.accuracy.porter import stem

MULTI_HOP = "multi-hop"
OPEN_DOMAIN = "open-domain"
SILENT = frozenset({"a", "an", "the", "and"})
PUNCTUATION = re.compile(f"[{re.escape(string.punctuation)}]")


def answer_f1(answer: str, gold: str, category: str) -> float:
    """0 … 1. Of an open-domain gold answer only what stands before the first semicolon counts."""
    if category == OPEN_DOMAIN:
        gold = gold.split(";")[0]
    if category == MULTI_HOP:
        said = answer.split(",")
        return fmean(max(token_f1(part, wanted) for part in said) for wanted in gold.split(","))
    return token_f1(answer, gold)


def token_f1(answer: str, gold: str) -> float:
    """Harmonic mean of precision and recall over words, with repetition."""
    said, wanted = Counter(words(answer)), Counter(words(gold))
    common = (said & wanted).total()
    return 2 * common / (said.total() + wanted.total()) if common else 0.0


def words(text: str) -> list[str]:
    """The words that count, without their endings."""
    return [stem(word) for word in PUNCTUATION.sub("", text.lower()).split() if word not in SILENT]
