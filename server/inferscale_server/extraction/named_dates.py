"""Dates as people and models write them: `2023-05-07`, `May 7, 2023`, `le 7 mai 2023`, `2023年5月7日`, `Sunday`.

Knows: months and weekdays of nine languages, in figures and words. Refuses to know: relative words (dates.py), clocks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import date

from inferscale_server.trigrams import fold

# fmt: off
_MONTHS = (
    "january jan januar jänner janvier enero janeiro gennaio januari января",
    "february feb februar février febrero fevereiro febbraio februari февраля",
    "march mar märz mars marzo março maart марта",
    "april apr avril abril aprile апреля",
    "may mai mayo maio maggio mei мая",
    "june jun juni juin junio junho giugno июня",
    "july jul juli juillet julio julho luglio июля",
    "august aug août agosto augustus августа",
    "september sep sept septembre septiembre setembro settembre сентября",
    "october oct oktober octobre octubre outubro ottobre октября",
    "november nov novembre noviembre novembro ноября",
    "december dec dezember décembre diciembre dezembro dicembre декабря",
)
_WEEKDAYS = (
    "monday montag lundi lunes segunda-feira lunedì maandag понедельник",
    "tuesday dienstag mardi martes terça-feira martedì dinsdag вторник",
    "wednesday mittwoch mercredi miércoles quarta-feira mercoledì woensdag среду",
    "thursday donnerstag jeudi jueves quinta-feira giovedì donderdag четверг",
    "friday freitag vendredi viernes sexta-feira venerdì vrijdag пятницу",
    "saturday samstag sonnabend samedi sábado sabato zaterdag субботу",
    "sunday sonntag dimanche domingo domenica zondag воскресенье",
)
# fmt: on
_MONTH_OF = {fold(name): number for number, names in enumerate(_MONTHS, 1) for name in names.split()}
_WEEKDAY_OF = {fold(name): number for number, names in enumerate(_WEEKDAYS) for name in names.split()}


@dataclass(frozen=True, slots=True)
class NamedDate:
    """What of a date is named; None for a part that is not. `weekday`: 0 is Monday."""

    year: int | None = None
    month: int | None = None
    day: int | None = None
    weekday: int | None = None

    def is_part_of(self, whole: NamedDate) -> bool:
        """Is every part that this one names the same there?"""
        pairs = zip(self._parts(), whole._parts(), strict=True)
        return all(mine is None or mine == its for mine, its in pairs)

    def in_year(self, year: int | None) -> NamedDate:
        """The same day in that year, unless it names a year itself; a whole date knows its weekday."""
        dated = replace(self, year=year) if self.year is None and None not in (self.month, self.day) else self
        if dated.year is None or dated.month is None or dated.day is None:
            return dated
        try:
            return replace(dated, weekday=date(dated.year, dated.month, dated.day).weekday())
        except ValueError:  # 31 February was written, but never was
            return dated

    def _parts(self) -> tuple[int | None, ...]:
        return self.year, self.month, self.day, self.weekday


def named_dates(text: str, year: int | None = None) -> frozenset[NamedDate]:
    """All dates in the text, in each way that they can be read (`5/7/2023`). `year`: of those that name a day alone."""
    read = [reading for found in _PATTERN.finditer(text) for reading in _readings(found)]
    return frozenset(dated for one in read for dated in (one.in_year(None), one.in_year(year)))


def without_named_dates(text: str, known: Iterable[NamedDate]) -> str:
    """The text without the dates that are one of these or a part of one."""
    wholes = tuple(known)

    def kept(found: re.Match[str]) -> str:
        is_known = any(one.in_year(None).is_part_of(whole) for one in _readings(found) for whole in wholes)
        return " " if is_known else found[0]

    return _PATTERN.sub(kept, text)


def _readings(found: re.Match[str]) -> tuple[NamedDate, ...]:
    parts = {name.partition("_")[0]: value for name, value in found.groupdict().items() if value is not None}
    if "weekday" in parts:
        return (NamedDate(weekday=_WEEKDAY_OF[fold(parts["weekday"])]),)
    if "first" in parts:
        one, two, year = int(parts["first"]), int(parts["second"]), int(parts["year"])
        return NamedDate(year, two, one), NamedDate(year, one, two)
    month = parts.get("month")
    return (
        NamedDate(
            int(parts["year"]) if "year" in parts else None,
            None if month is None else int(month) if month.isdecimal() else _MONTH_OF[fold(month)],
            int(parts["day"]) if "day" in parts else None,
        ),
    )


def _pattern() -> re.Pattern[str]:
    """What names more comes first: `7 May 2023` holds `7 May`, `May 2023` and `2023`. A part's group is called for the
    part and for its pattern."""
    month = rf"\b(?P<month_@>{'|'.join(sorted(_names(_MONTHS), key=len, reverse=True))})\b"
    year, day = r"(?P<year_@>\d{4})(?!\d)", r"(?<!\d)(?P<day_@>\d{1,2})(?!\d)"
    patterns = (
        rf"(?<!\d){year}[-/.](?P<month_@>\d{{2}})(?:[-/.]{day})?(?!\d)",
        rf"(?<!\d)(?P<first_@>\d{{1,2}})[./] ?(?P<second_@>\d{{1,2}})[./] ?{year}",
        rf"(?:(?<!\d){year} ?[年년] ?)?(?<!\d)(?P<month_@>\d{{1,2}}) ?[月월] ?(?:{day} ?[日号號일])?",
        rf"{day}(?:st|nd|rd|th|er|[.ºª])?(?: of| de| di)? {month}\.?(?:,? (?:de |del )?{year})?",
        rf"{month}\.? {day}(?:st|nd|rd|th)?(?:,? {year})?",
        rf"{month}\.?,? (?:of |de )?{year}",
        rf"{day}(?:st|nd|rd|th)\b",
        r"(?<!\d)(?P<year_@>(?:19|20)\d\d)(?!\d) ?[年년]?",
        rf"\b(?P<weekday_@>{'|'.join(_names(_WEEKDAYS))})\b",
        month,
    )
    numbered = (pattern.replace("_@", f"_{number}") for number, pattern in enumerate(patterns))
    return re.compile("|".join(numbered), re.IGNORECASE)


def _names(lines: Iterable[str]) -> list[str]:
    return [re.escape(name) for line in lines for name in line.split()]


_PATTERN = _pattern()
