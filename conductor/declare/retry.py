"""`Retry`: how a step is repeated after an error. The engine keeps the durable half, `records.RetryPolicy`."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from conductor.declare.durations import Duration, in_ms
from conductor.errors import DeclarationError
from conductor.records import Backoff, RetryPolicy

__all__ = ["Retry"]

Errors = type[Exception] | Iterable[type[Exception]]


class Retry:
    """Repeat a step up to `max` times. `on` adds errors that are worth a repeat, `never` names those that are not (it wins).

    `backoff` is `adaptive` (10, 20, 45, 90, 120 s), `fixed_10s`, `exponential` (10, 20, 40, … s) or `none`; `cap` bounds one pause, and
    after `max_age` since the first attempt nothing is repeated any more. Without `on`, transient errors are repeated; with `unknown`
    also those that nothing says may be repeated.
    """

    __slots__ = ("policy",)

    def __init__(
        self,
        max: int = 5,
        *,
        on: Errors = (),
        never: Errors = (),
        backoff: Backoff | str = Backoff.ADAPTIVE,
        cap: Duration = timedelta(seconds=120),
        max_age: Duration = timedelta(minutes=30),
        unknown: bool = False,
    ) -> None:
        self.policy = RetryPolicy(
            max=_number(max),
            on=_names("on", on),
            never=_names("never", never),
            backoff=_backoff(backoff),
            cap_ms=_duration("cap", cap),
            max_age_ms=_duration("max_age", max_age),
            unknown=bool(unknown),
        )

    @classmethod
    def of(cls, policy: RetryPolicy) -> Retry:
        """The declared half of a stored policy."""
        made = cls.__new__(cls)
        made.policy = policy
        return made

    def __repr__(self) -> str:
        return f"Retry({self.policy!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Retry) and other.policy == self.policy

    def __hash__(self) -> int:
        return hash(self.policy)


def _number(given: object) -> int:
    if not isinstance(given, int) or isinstance(given, bool) or not 0 <= given <= 1000:
        raise DeclarationError(where="Retry", problem=f"max is {given!r}; a whole number from 0 to 1000 was expected")
    return given


def _names(option: str, given: Errors) -> tuple[str, ...]:
    classes: tuple[object, ...] = (given,) if isinstance(given, type) else tuple(given)
    names = []
    for found in classes:
        if not (isinstance(found, type) and issubclass(found, Exception)):
            raise DeclarationError(where="Retry", problem=f"{option} holds {found!r}; exception classes were expected")
        names.append(f"{found.__module__}.{found.__qualname__}")
    return tuple(names)


def _backoff(given: Backoff | str) -> Backoff:
    try:
        return Backoff(given)
    except ValueError:
        known = ", ".join(Backoff)
        raise DeclarationError(where="Retry", problem=f"backoff is {given!r}; known are {known}") from None


def _duration(option: str, given: Duration) -> int:
    try:
        return in_ms(given, least=timedelta(0))
    except ValueError as error:
        raise DeclarationError(where="Retry", problem=f"{option}: {error}") from None
