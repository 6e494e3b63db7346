"""`Limit`: so many a minute, so many at once, over all workers; and `RetryAfter`, the word of a service that wants to be left alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from conductor.declare.lanes import check_turns, turn_of
from conductor.declare.options import check_name
from conductor.errors import DeclarationError

__all__ = ["Limit", "check_limit", "limit_keys", "read_rate"]

_RATE = re.compile(r"(\d{1,9})\s*/\s*(\d{0,6})\s*(s|sec|m|min|h|d)\Z")
_UNITS = {"s": 1_000, "sec": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_MOST = 1_000_000


class Limit:
    """At most `rate` attempts begin in any such time (`"500/m"`, `"10/s"`, `"3/10min"`), and at most `concurrency` run at once, over all
    workers. What is over that stays ready, and says so. With `key=`, a function of the run's input, the keys take turns, and a Retry-After
    holds back its key only.
    """

    __slots__ = ("key", "name", "terms")

    def __init__(
        self, name: str, rate: str | None = None, concurrency: int | None = None, *, key: Callable[[Any], Any] | None = None,
    ) -> None:
        where = f"limit {name}"
        self.name = check_name(name, where, "limit name")
        if rate is None and concurrency is None:
            raise DeclarationError(where=where, problem='it limits nothing; give it rate="500/m", concurrency=20, or both')
        many, per = ("", "") if rate is None else read_rate(rate, where)
        if concurrency is not None and (not isinstance(concurrency, int) or isinstance(concurrency, bool) or not 1 <= concurrency <= _MOST):
            raise DeclarationError(where=where, problem=f"concurrency is {concurrency!r}; a whole number from 1 to {_MOST} was expected")
        self.terms = f"{many};{per};{'' if concurrency is None else concurrency}"
        self.key = check_turns(key, where)

    def __repr__(self) -> str:
        return f"<Limit {self.name}>"


def read_rate(given: Any, where: str) -> tuple[str, str]:
    """`500/m` as how many, and in how many ms."""
    found = _RATE.match(given.strip()) if isinstance(given, str) else None
    if found is None or int(found[1]) < 1:
        raise DeclarationError(where=where, problem=f'rate is {given!r}; such as "500/m", "10/s" or "3/10min" was expected')
    per = int(found[2] or 1) * _UNITS[found[3]]
    if not 100 <= per <= 86_400_000 * 31:
        raise DeclarationError(where=where, problem=f"rate is {given!r}; its time must be from a second to 31 days")
    return found[1], str(per)


def check_limit(given: Any, where: str) -> Limit:
    if not isinstance(given, Limit):
        raise DeclarationError(where=where, problem=f'limit is {given!r}; a Limit("name", rate="500/m", concurrency=20) was expected')
    return given


def limit_keys(limits: Iterable[Limit], read: Callable[[], Any], what: str) -> str:
    """Whose turn a new run takes in each limit that has a key: lines `limit=key`. The input is read only where there is one."""
    keyed = [limit for limit in limits if limit.key is not None]
    if not keyed:
        return ""
    value = read()
    return "\n".join(f"{limit.name}={turn_of(limit.key, value, what, 'limit')}" for limit in keyed)
