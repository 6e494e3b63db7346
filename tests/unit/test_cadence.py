"""When schedules tick: against a scan of every minute, over changes of the clocks, and what is refused."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery.schedules import crontab, schedule
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from conductor.declare.cadence import Cadence
from conductor.errors import DeclarationError

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
# Half an hour of summer time, two hours of it, a change at midnight, a skipped day, changes in Ramadan, a zone of :45, none at all.
ZONES = (
    "Europe/Zurich", "America/New_York", "Australia/Lord_Howe", "Antarctica/Troll", "America/Sao_Paulo", "America/Havana", "Pacific/Apia",
    "Africa/Casablanca", "Asia/Kathmandu", "Asia/Tehran", "UTC",
)


def ms(*moment: int, tz: str = "UTC", fold: int = 0) -> int:
    return round(datetime(*moment, tzinfo=ZoneInfo(tz), fold=fold).timestamp() * 1000)  # type: ignore[misc,arg-type]


def cron(text: str, tz: str = "UTC") -> Cadence:
    return Cadence.of(crontab.from_string(text), tz=tz, where="test")


def scanned(one: Cadence, after: int, until: int) -> list[int]:
    """Look at the clock on the wall at every minute; a face that was seen before does not count."""
    zone, found, seen = ZoneInfo(one.tz), [], set()
    for at in range((after - 26 * HOUR) // MINUTE * MINUTE, until + 1, MINUTE):
        wall = datetime.fromtimestamp(at / 1000, UTC).astimezone(zone).replace(tzinfo=None, fold=0)
        fits = (
            wall.minute in one.minute and wall.hour in one.hour and wall.day in one.day_of_month and wall.month in one.month_of_year
            and wall.isoweekday() % 7 in one.day_of_week
        )
        if fits and wall not in seen and at > after:
            found.append(at)
        seen.add(wall)
    return found


def transitions(zone: str) -> list[int]:
    """Hours, since 2000, after which the offset of the zone is another one."""
    offsets = [(at, datetime.fromtimestamp(at / 1000, ZoneInfo(zone)).utcoffset()) for at in range(ms(2000, 1, 1), ms(2027, 1, 1), DAY)]
    return [at for (at, before), (_, after) in pairwise(offsets) if before != after] or [ms(2026, 3, 29)]


CHANGES = {zone: transitions(zone) for zone in ZONES}


def some(low: int, high: int) -> st.SearchStrategy[tuple[int, ...]]:
    everything = tuple(range(low, high + 1))
    return st.one_of(
        st.just(everything), st.lists(st.sampled_from(everything), min_size=1, max_size=4, unique=True).map(lambda found: tuple(sorted(found))))


@st.composite
def looks(draw: st.DrawFn) -> tuple[Cadence, int, int]:
    """A cadence, and a stretch of up to three days that often has a change of the clocks in it."""
    zone = draw(st.sampled_from(ZONES))
    one = Cadence(0, draw(some(0, 59)), draw(some(0, 23)), draw(some(1, 31)), draw(some(1, 12)), draw(some(0, 6)), zone)
    assume(one.day_of_month[0] < 30 or set(one.month_of_year) - {2, 4, 6, 9, 11})  # not a day that never comes
    near = draw(st.one_of(st.sampled_from(CHANGES[zone]), st.integers(ms(2000, 1, 1), ms(2037, 1, 1))))
    after = near + draw(st.integers(-DAY, DAY))
    return one, after, after + draw(st.integers(0, 3 * DAY))


# Against the scan.


@pytest.mark.spec("WF-16", "OP-5")
@settings(max_examples=120, deadline=None)
@given(looks())
@example((cron("30 2 * * *", "Europe/Zurich"), ms(2026, 3, 28), ms(2026, 3, 31)))
@example((cron("30 2 * * *", "Europe/Zurich"), ms(2026, 10, 24), ms(2026, 10, 27)))
@example((cron("*/15 0,23 * * *", "America/Havana"), ms(2026, 11, 1), ms(2026, 11, 2)))
@example((cron("0 12 * * *", "Pacific/Apia"), ms(2011, 12, 29), ms(2012, 1, 1)))
def test_ticks_are_what_a_scan_of_every_minute_finds(look: tuple[Cadence, int, int]) -> None:
    one, after, until = look
    expected = scanned(one, after, until)
    assert one.ticks_between(after, until, 10_000) == expected
    assert one.ticks_between(after, until, 3) == expected[-3:]
    following = one.next_after(after)
    assert following > after
    assert following == expected[0] if expected else following > until


@pytest.mark.spec("OP-5")
@given(st.integers(1000, 10 * DAY), st.integers(0, 4_000_000_000_000), st.integers(0, 30), st.integers(1, 40))
def test_an_interval_is_anchored_so_that_everybody_agrees(every: int, after: int, ticks: int, limit: int) -> None:
    one = Cadence(every_ms=every)
    following = one.next_after(after)
    assert following % every == 0
    assert 0 < following - after <= every
    found = one.ticks_between(after, following + ticks * every, limit)
    assert found == [following + number * every for number in range(ticks + 1)][-limit:]
    assert one.ticks_between(after, following - 1, limit) == []


# The changes of the clocks, spelled out.


@pytest.mark.spec("WF-16")
def test_a_time_that_does_not_exist_is_left_out_and_one_that_exists_twice_ticks_once() -> None:
    nightly = cron("30 2 * * *", "Europe/Zurich")
    spring = nightly.ticks_between(ms(2026, 3, 28), ms(2026, 3, 31), 10)
    assert spring == [ms(2026, 3, 28, 1, 30), ms(2026, 3, 30, 0, 30)]  # none on the 29th, when 02:30 does not exist
    autumn = nightly.ticks_between(ms(2026, 10, 24), ms(2026, 10, 27), 10)
    assert autumn == [ms(2026, 10, 24, 0, 30), ms(2026, 10, 25, 0, 30), ms(2026, 10, 26, 1, 30)]  # on the 25th at the first of two
    assert nightly.next_after(ms(2026, 10, 25, 0, 30)) == ms(2026, 10, 26, 1, 30)


@pytest.mark.spec("WF-16")
def test_bounds_are_after_and_until() -> None:
    one = cron("0 * * * *")
    noon = ms(2026, 5, 1, 12)
    assert one.next_after(noon - 1) == noon
    assert one.next_after(noon) == noon + HOUR
    assert one.ticks_between(noon, noon + HOUR, 5) == [noon + HOUR]
    assert one.ticks_between(noon - 1, noon + HOUR - 1, 5) == [noon]
    assert one.ticks_between(noon, noon, 5) == []


# Rare ones are found quickly.


@pytest.mark.parametrize(("text", "expected"), [
    ("0 0 29 2 *", ms(2028, 2, 29)), ("0 0 29 2 1", ms(2044, 2, 29)), ("59 23 31 12 *", ms(2026, 12, 31, 23, 59)), ("* * * 1 *", ms(2027, 1, 1)),
])
def test_a_rare_tick_is_found_without_a_scan(text: str, expected: int) -> None:
    one, after = cron(text), ms(2026, 5, 1, 12)
    begun = time.perf_counter()
    for _ in range(10):
        assert one.next_after(after) == expected
    assert time.perf_counter() - begun < 0.2


def test_a_gap_of_years_costs_what_the_limit_says() -> None:
    one, now = cron("* * * * *", "Europe/Zurich"), ms(2026, 5, 1, 12)
    begun = time.perf_counter()
    assert one.ticks_between(0, now, 100) == list(range(now - 99 * MINUTE, now + 1, MINUTE))
    assert Cadence(every_ms=1000).ticks_between(0, now, 3) == [now - 2000, now - 1000, now]
    assert time.perf_counter() - begun < 0.2


# From what users write, and to the store and back.


@pytest.mark.parametrize("given", [schedule(90), schedule(timedelta(seconds=90)), timedelta(seconds=90), 90, 90.0])
def test_an_interval_is_written_in_many_ways(given: Any) -> None:
    assert Cadence.of(given, where="x") == Cadence(every_ms=90_000)


def test_fields_are_taken_from_celery_as_it_expanded_them() -> None:
    one = Cadence.of(crontab(minute="*/20", hour="8-10", day_of_week="mon,sun", month_of_year="jan"), tz="Asia/Tehran", where="x")
    assert (one.minute, one.hour, one.day_of_week, one.month_of_year) == ((0, 20, 40), (8, 9, 10), (0, 1), (1,))
    assert (one.day_of_month, one.tz, one.every_ms) == (tuple(range(1, 32)), "Asia/Tehran", 0)
    assert Cadence.of(crontab(), tz=ZoneInfo("Asia/Tehran"), where="x").tz == "Asia/Tehran"


@pytest.mark.parametrize("one", [Cadence(every_ms=90_000), cron("*/20 8-10 * 1 1", "Asia/Tehran"), cron("* * * * *")])
def test_the_stored_form_reads_back_and_has_one_spelling(one: Cadence) -> None:
    assert Cadence.from_json(one.to_json()) == one
    assert Cadence.from_json(one.to_json()).to_json() == one.to_json()


def test_a_newer_stored_form_is_refused_and_a_wrong_one_too() -> None:
    with pytest.raises(ValueError, match="newer release"):
        Cadence.from_json('{"v":2,"moon":"full"}')
    wrong = json.loads(cron("* * * * *").to_json()) | {"hour": [25]}
    with pytest.raises(DeclarationError, match="hour"):
        Cadence.from_json(json.dumps(wrong))


@pytest.mark.parametrize(("text", "expected"), [
    ("*/5 8-17 * * 1-5", "*/5 8-17 * * 1-5 (UTC)"), ("0 3 1,15 * *", "0 3 1,15 * * (UTC)"), ("* * * * *", "* * * * * (UTC)"),
])
def test_it_is_shown_as_a_person_writes_it(text: str, expected: str) -> None:
    assert str(cron(text)) == expected
    assert str(Cadence(every_ms=90_000)) == "every 0:01:30"


class Solar:
    """As Celery's `solar`: neither fields nor an interval."""

    event, lat, lon = "sunrise", 47.0, 8.5


@pytest.mark.spec("WF-16")
@pytest.mark.parametrize(("when", "problem"), [
    (Solar(), r"Solar is no cadence; a crontab\(…\) or schedule\(…\) of celery.schedules, a timedelta, or a number of seconds"),
    ("0 3 * * *", "str is no cadence"), (None, "NoneType is no cadence"), (True, "bool is no cadence"), (0, "not between 1 second and"), (-5, "not between 1 second and"),
    (0.5, "not between 1 second and"), (float("nan"), "not between 1 second and"), (timedelta(days=9999), "not between 1 second and"),
])
def test_what_is_no_cadence_is_refused(when: Any, problem: str) -> None:
    with pytest.raises(DeclarationError, match=f"^x: .*{problem}"):
        Cadence.of(when, where="x")


@pytest.mark.spec("WF-16")
def test_a_day_that_never_comes_is_refused() -> None:
    never: Any = crontab()
    never.day_of_month, never.month_of_year = {30, 31}, {2}
    with pytest.raises(DeclarationError, match="day 30,31 never comes in month 2"):
        Cadence.of(never, where="x")
    never.month_of_year = {2, 4}  # 30 April does
    assert Cadence.of(never, where="x").next_after(ms(2026, 1, 1)) == ms(2026, 4, 30)


@pytest.mark.parametrize("values", [set(), {60}, {-1}, {"5"}, {True}, None, 5])
def test_fields_that_make_no_sense_are_refused(values: Any) -> None:
    wrong: Any = crontab()
    wrong.minute = values
    with pytest.raises(DeclarationError, match=r"minute is .*; whole numbers from 0 to 59"):
        Cadence.of(wrong, where="x")


@pytest.mark.parametrize("tz", ["Europe/Zurichh", "", "Europe", "../etc/passwd", None, 1, UTC])
def test_a_zone_that_does_not_exist_is_refused(tz: Any) -> None:
    with pytest.raises(DeclarationError, match="tz is "):
        Cadence.of(crontab(), tz=tz, where="x")


def test_a_zone_of_an_interval_is_refused_and_not_ignored() -> None:
    with pytest.raises(DeclarationError, match="belongs to a crontab"):
        Cadence.of(60, tz="Europe/Zurich", where="x")
