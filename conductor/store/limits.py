"""Verbs of limits: asking in the home of a run, permits in the home of the limit, and a look at both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from conductor.ids import home_of_name
from conductor.records import Attempt, Poke
from conductor.store.answers import Want
from conductor.store.attempts import parse_claim
from conductor.store.door import Door
from conductor.store.reads import Source, read_now

__all__ = [
    "GAP_MS", "LimitVerbs", "LimitView", "Permit", "Permitted", "Wish", "home_of_limit", "list_limits", "read_limits",
    "wrong_in_limit",
]

GAP_MS = 5_000


@dataclass(frozen=True, slots=True)
class Wish:
    """Something ready that wants a permit: `member` is `run:index`."""

    member: str
    score: int
    key: str


@dataclass(frozen=True, slots=True)
class Permit:
    """One permit, known by its fence, and what it was given for."""

    fence: str
    member: str
    key: str


@dataclass(frozen=True, slots=True)
class Permitted:
    """What a limit gave, and who is to be woken because there is room for more."""

    permits: list[Permit]
    pokes: list[Poke] = field(default_factory=list)


def home_of_limit(name: str, partitions: int) -> int:
    return home_of_name(f"limit:{name}", partitions)


class LimitVerbs(Door):
    """`queue` is that of the ready index, `queue!limit`. `gap_ms`: how long a partition may go without a stall sweep before that is
    taken for a time in which nobody could renew anything."""

    def ask(self, partition: int, queue: str, most: int = 50, enrolled: Sequence[Wish] = ()) -> list[Wish]:
        """What wants a permit and has not asked yet; `enrolled` have, and wait for their turn from now on."""
        tail = [part for wish in enrolled for part in (wish.member, wish.score)]
        _, _, *lines = self._call("ask", partition, queue, most, len(enrolled), *tail)
        return [Wish(member, int(score), key) for member, score, key in (line.split(";", 2) for line in lines)]

    def permit(
        self, queue: str, *, most: int, terms: str = "", lease_ms: int = 15_000, returned: Sequence[tuple[str, str]] = (),
        backs: Sequence[tuple[str, int]] = (), wants: Sequence[Wish] = (), gap_ms: int = GAP_MS,
    ) -> Permitted:
        """Give permits back (`done`, `unused`), hold keys back, queue wishes, and get up to `most` permits."""
        name = queue.partition("!")[2]
        home = home_of_limit(name, self.partitions)
        rate, per, concurrency = (terms or ";;").split(";")
        tail = [part for pair in (*returned, *backs) for part in pair]
        tail += [part for wish in wants for part in (wish.member, wish.score, wish.key)]
        _, _, queues, *lines = self._call(
            "permit", home, name, queue, most, rate, per, concurrency, lease_ms, gap_ms, len(returned), len(backs), len(wants), *tail)
        return Permitted([Permit(*line.split(";", 2)) for line in lines], self._pokes(home, queues))

    def take(self, partition: int, queue: str, member: str, want: Want) -> tuple[str, list[Attempt], list[Poke]]:
        """Claim what a permit was given for; nothing if it no longer stands."""
        word, _, queues, _, rows = self._call("take", partition, queue, 1, want.code, want.tag, member)
        return word, [parse_claim(row) for row in rows], self._pokes(partition, queues)

    def keep_permit(self, name: str, fence: str, lease_ms: int) -> str:
        word: str = self._call_bare("keep_permit", home_of_limit(name, self.partitions), name, fence, lease_ms)[0]
        return word

    def set_limit(self, name: str, terms: str, *, by_hand: bool, forget: bool = False, gap_ms: int = GAP_MS) -> tuple[str, list[Poke]]:
        """What holds from now on: OK, or BY_HAND where a person's word stands above the code's."""
        home = home_of_limit(name, self.partitions)
        rate, per, concurrency = (terms or ";;").split(";")
        word, queues = self._call("set_limit", home, name, rate, per, concurrency, int(by_hand), int(forget), gap_ms)
        return word, self._pokes(home, queues)


@dataclass(frozen=True, slots=True)
class LimitView:
    """A limit as it stands: what it allows, how much of that is used, who waits by key, who is held back until when (ms)."""

    name: str
    terms: str
    by_hand: bool = False
    permits: int = 0
    spent: int = 0
    waiting: dict[str, int] = field(default_factory=dict)
    back: dict[str, int] = field(default_factory=dict)


def read_limits(source: Source, name: str = "") -> list[LimitView]:
    """All limits that are in use or set by hand; or the one that is named."""
    names = [name] if name else sorted(
        one for number in range(source.partitions) for one in source.client().smembers(source.keys.of(number, "limits")))
    return [view for one in names if (view := _read(source, one)) is not None]


def _read(source: Source, name: str) -> LimitView | None:
    home, client, now = home_of_limit(name, source.partitions), source.client(), read_now(source)
    key = source.keys.of(home, f"limit:{name}")
    pipe = client.pipeline(transaction=True)
    pipe.hgetall(key)
    pipe.zcount(f"{key}:permits", now, "+inf")
    pipe.hgetall(f"{key}:spent")
    pipe.zrangebyscore(f"{key}:back", now, "+inf", withscores=True)
    pipe.smembers(f"{key}:queues")
    terms, permits, spent, back, queues = pipe.execute()
    if not terms:
        return None
    per = int(terms.get("per") or 0)
    first = now // max(1, per / 200) - 200
    used = sum(int(count) for piece, count in spent.items() if int(piece) >= first)
    waiting: dict[str, int] = {}
    for queue in queues:
        keys = [*client.zrange(f"{key}:turns:{queue}", 0, 999), *client.zrange(f"{key}:aside:{queue}", 0, 999)]
        for one in keys:
            waiting[one] = waiting.get(one, 0) + int(client.zcard(f"{key}:key:{queue}\n{one}"))
    text = f"{terms.get('rate', '')};{terms.get('per', '')};{terms.get('concurrency', '')}"
    return LimitView(name, text, terms.get("hand") == "1", int(permits), used, waiting, {one: int(at) for one, at in back})


def list_limits(source: Source, partition: int) -> list[str]:
    """The limits at home in a partition."""
    return sorted(source.client().smembers(source.keys.of(partition, "limits")))


def wrong_in_limit(source: Source, partition: int, name: str) -> list[str]:
    """What does not fit in one moment of a limit's home."""
    client, key = source.client(), source.keys.of(partition, f"limit:{name}")
    pipe = client.pipeline(transaction=True)
    pipe.zrange(f"{key}:permits", 0, -1)
    pipe.hgetall(f"{key}:granted")
    pipe.smembers(f"{key}:queues")
    permits, granted, queues = pipe.execute()
    wrong = []
    if set(permits) != set(granted):
        wrong.append(f"permits {sorted(permits)}, but given for something are {sorted(granted)}")
    for queue in queues:
        pipe = client.pipeline(transaction=True)
        pipe.zrange(f"{key}:turns:{queue}", 0, -1)
        pipe.zrange(f"{key}:aside:{queue}", 0, -1)
        pipe.zscore(source.keys.of(partition, "due"), f"limit:{queue}")
        turns, aside, due = pipe.execute()
        if (turns or aside) and due is None:
            wrong.append(f"queue {queue} waits and has no timer")
        empty = [one for one in turns if not client.exists(f"{key}:key:{queue}\n{one}")]
        wrong += [f"key {one!r} has a turn in queue {queue} and wants nothing" for one in empty]
    return wrong
