"""Words like "yesterday", made to say which day they mean: `yesterday (2023-05-07)`.

Knows: English, German, French, Italian, Spanish, Portuguese and Chinese words, in UTC. What it does not know is left as
it is, and to the model. The word itself stays, so that a wrong guess loses nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta

# fmt: off
_DAYS = {
    -2: ("day before yesterday", "vorgestern", "avant-hier", "altro ieri", "anteayer", "antier", "anteontem", "前天"),
    -1: ("yesterday", "last night", "gestern", "hier", "ieri", "ayer", "anoche", "ontem", "昨天", "昨晚"),
    0: (
        "today", "tonight", "this morning", "this evening", "heute", "aujourd['’]hui", "oggi", "hoy", "hoje",
        "今天", "今晚",
    ),
    1: (
        "tomorrow", "(?<!guten )(?<!heute )(?<!gestern )(?-i:morgen)", "demain", "domani",
        "(?<!la )(?<!esta )mañana", "amanhã", "明天",
    ),
    2: ("day after tomorrow", "übermorgen", "après-demain", "dopodomani", "pasado mañana", "depois de amanhã", "后天"),
}
# fmt: on
_FRENCH = re.compile(r"\b(?:[cdjln]['’]|(?:suis|nous|une|est|mon|ma|le|les|était)\b)", re.IGNORECASE)
"""One of these is in almost any French sentence, and in no German one, where `hier` means "here"."""
_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_NUMBERS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_COUNT = rf"(?P<count>\d{{1,3}}|an?|{'|'.join(_NUMBERS)})"
_RESOLVED = r"(?! \(\d{4}(?:-\d\d)*\))"

Moment = Callable[[re.Match[str], date], str]


def resolve_dates(text: str, said_at: float) -> str:
    """The text with the date behind every relative word that is known. `said_at` in Unix seconds."""
    try:
        day = datetime.fromtimestamp(said_at, UTC).date()
        return _PATTERN.sub(lambda found: found[0] + _behind(found, day), text)
    except (OverflowError, ValueError, OSError):  # a moment at the edge of time is no reason to lose a fact
        return text


def said_on(said_at: float) -> str:
    """`Said on Monday, 2023-05-08.`, in UTC; nothing for a moment at the edge of time. `said_at` in Unix seconds."""
    try:
        return f"{datetime.fromtimestamp(said_at, UTC):Said on %A, %Y-%m-%d.}"
    except (OverflowError, ValueError, OSError):
        return ""


def without_dates(text: str) -> str:
    """The text without what `resolve_dates` puts into it."""
    return re.sub(r" \(\d{4}(?:-\d\d)*\)", "", text)


def _behind(found: re.Match[str], day: date) -> str:
    """What is to stand behind the words."""
    if found[0].lower() == "hier" and not _FRENCH.search(found.string):
        return ""
    return f" ({_meaning(found, day)})"


def _meaning(found: re.Match[str], day: date) -> str:
    kind = str(found.lastgroup)  # the outermost group: one of those that `_pattern` names
    if kind in _MOMENTS:
        return _MOMENTS[kind](found, day)
    return (day + timedelta(days=int(kind[1:].replace("m", "-")))).isoformat()


def _counted(found: re.Match[str], day: date) -> str:
    """`3 weeks ago`, `in two days`."""
    written = (found["past_count"] or found["future_count"]).lower()
    unit = (found["past_unit"] or found["future_unit"]).lower()
    count = _NUMBERS.index(written) + 1 if written in _NUMBERS else 1 if written in ("a", "an") else int(written)
    signed = -count if found["past"] else count
    if unit.startswith(("day", "week")):
        return (day + timedelta(days=signed * (7 if unit.startswith("week") else 1))).isoformat()
    return str(day.year + signed) if unit.startswith("year") else _month(day, signed)


def _weekday(found: re.Match[str], day: date) -> str:
    """`last Monday`: the latest before this day. `next Monday`: the first behind it."""
    ahead = (_WEEKDAYS.index(found["weekday_name"].lower()) - day.weekday()) % 7
    if found["weekday_side"].lower() == "last":
        return (day - timedelta(days=(7 - ahead) or 7)).isoformat()
    return (day + timedelta(days=ahead or 7)).isoformat()


def _period(found: re.Match[str], day: date) -> str:
    """`last year`, `next month`."""
    signed = -1 if found["period_side"].lower() == "last" else 1
    return str(day.year + signed) if found["period_unit"].lower() == "year" else _month(day, signed)


def _month(day: date, months: int) -> str:
    total = day.year * 12 + day.month - 1 + months
    return f"{total // 12:04d}-{total % 12 + 1:02d}"


_MOMENTS: dict[str, Moment] = {"past": _counted, "future": _counted, "weekday": _weekday, "period": _period}


def _pattern() -> re.Pattern[str]:
    """Longer words first: `day before yesterday` holds `yesterday`."""
    unit = "(?:days?|weeks?|months?|years?)"
    past = _COUNT.replace("count", "past_count") + rf" (?P<past_unit>{unit}) ago"
    future = r"\bin " + _COUNT.replace("count", "future_count") + rf" (?P<future_unit>{unit})"
    weekday = rf"(?P<weekday_side>last|next) (?P<weekday_name>{'|'.join(_WEEKDAYS)})"
    period = r"(?P<period_side>last|next) (?P<period_unit>month|year)"
    parts = [rf"(?P<past>\b{past}\b)", rf"(?P<future>{future}\b)", rf"(?P<weekday>\b{weekday}\b)"]
    parts.append(rf"(?P<period>\b{period}\b)")
    for offset in (-2, 2, -1, 1, 0):
        words = "|".join(word if "一" <= word[0] <= "鿿" else rf"\b{word}\b" for word in _DAYS[offset])
        parts.append(f"(?P<d{str(offset).replace('-', 'm')}>{words})")
    return re.compile(f"(?:{'|'.join(parts)}){_RESOLVED}", re.IGNORECASE)


_PATTERN = _pattern()
