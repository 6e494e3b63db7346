"""Rules of the state machine about limits: asking, permits, taking what they were given for, and every way of losing them half way.

The model counts what was given in the window and what is out; the store may never give more. Nothing under a limit is claimed without a
permit.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import redis
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from conductor.records import Attempt
from conductor.store import Store
from conductor.store.limits import Permit, wrong_in_limit
from tests.integration.playing import Player

__all__ = ["LimitedVerbs"]

_QUEUE, _LIMIT = "q!ai", "limit:ai"
_RATE, _AT_ONCE = 4, 2
_TERMS = f"{_RATE};3600000;{_AT_ONCE}"
_PICK = st.integers(0, 30)


class LimitedVerbs:
    """What a state machine of verbs needs to know about limits."""

    client: redis.Redis
    store: Store
    play: Player
    attempts: list[Attempt]
    seen: Counter[str]
    twice: bool

    def open_limit(self) -> None:
        self.permits: dict[str, tuple[Permit, int]] = {}  # those that are out, and the window they were given in
        self.used: set[str] = set()  # those whose holder has taken what they were given for; others can only be lost
        self.window, self.given = 0, 0

    def took(self, attempts: list[Attempt]) -> None:
        raise NotImplementedError

    @rule(most=st.integers(1, 3), stops=st.sampled_from(["", "", "", "asked", "permitted"]), twice=st.booleans())
    def ask_for_permits(self, most: int, stops: str, twice: bool) -> None:
        """A worker, which may die between any two calls."""
        self.twice = twice
        wishes = self.store.ask(0, _QUEUE)
        if stops == "asked":
            return
        told = self.store.permit(_QUEUE, most=most, terms=_TERMS, wants=wishes)
        for one in told.permits:
            assert one.fence not in self.permits, "a permit was given twice"
            self.permits[one.fence] = (one, self.window)
        self.given += len(told.permits)
        self.seen["permitted"] += len(told.permits)
        self.seen["refused a permit"] += len(told.permits) < min(most, len(wishes))
        if stops == "permitted":
            return
        self.store.ask(0, _QUEUE, enrolled=[wish for wish in wishes if wish.member not in {one.member for one in told.permits}])
        for one in told.permits:
            self.use(one)

    def use(self, permit: Permit) -> None:
        word, attempts, _ = self.store.take(0, _QUEUE, permit.member, self.play.want(queue=_QUEUE))
        assert word == "OK" and len(attempts) <= 1
        assert all(one.ref.startswith(permit.member) for one in attempts)
        self.used.add(permit.fence)
        self.took_limited(attempts)
        self.seen["taken under a permit"] += len(attempts)
        if not attempts:
            self.give_up(permit.fence, unused=True)

    def took_limited(self, attempts: list[Attempt]) -> None:
        self.permitted = True
        try:
            self.took(attempts)
        finally:
            self.permitted = False

    permitted = False

    def only_with_a_permit(self, attempts: list[Attempt]) -> None:
        limited = [one.ref for one in attempts if self.play.graphs[one.run_id].nodes[one.index].limit]
        assert self.permitted or not limited, f"{limited} were claimed without a permit"

    @precondition(lambda self: self.used & set(self.permits))
    @rule(pick=_PICK, twice=st.booleans())
    def return_a_permit(self, pick: int, twice: bool) -> None:
        self.twice = twice
        mine = sorted(self.used & set(self.permits))
        self.give_up(mine[pick % len(mine)], unused=False)

    def give_up(self, fence: str, *, unused: bool) -> None:
        _, window = self.permits.pop(fence)
        unused = unused and window == self.window  # what a window that is over has counted is gone
        self.store.permit(_QUEUE, most=0, terms=_TERMS, returned=[(fence, "unused" if unused else "done")])
        self.given -= unused

    @precondition(lambda self: self.permits)
    @rule(pick=_PICK, twice=st.booleans())
    def lose_a_permit(self, pick: int, twice: bool) -> None:
        """Its holder is never heard of again: its lease ends, and what it was given for may be asked for again."""
        self.twice = twice
        self.lose(sorted(self.permits)[pick % len(self.permits)])

    def lose(self, fence: str) -> None:
        assert self.store.keep_permit("ai", fence, 15_000) == "OK"
        self.play.backdate(f"{_LIMIT}:permits", fence)
        self.store.permit(_QUEUE, most=0, terms=_TERMS)
        assert self.store.keep_permit("ai", fence, 15_000) == "LOST"
        del self.permits[fence]
        self.seen["permit lost"] += 1

    @rule()
    def the_window_passes(self) -> None:
        self.client.delete(self.store.keys.of(0, f"{_LIMIT}:spent"))
        self.window, self.given = self.window + 1, 0

    @invariant()
    def the_limit_holds(self) -> None:
        if not hasattr(self, "permits"):
            return
        out = set(map(str, self.client.zrange(self.store.keys.of(0, f"{_LIMIT}:permits"), 0, -1)))
        assert out == set(self.permits)
        assert len(out) <= _AT_ONCE and self.given <= _RATE
        assert wrong_in_limit(self.store, 0, "ai") == []

    def everything_permitted(self, by_flags: Any) -> int:
        """Operators let go: all that stands under the limit is done."""
        done = 0
        for fence in sorted(self.permits):
            if fence in self.used:
                self.give_up(fence, unused=False)
            else:
                self.lose(fence)
        for _ in range(60):
            self.the_window_passes()
            wishes = self.store.ask(0, _QUEUE)
            told = self.store.permit(_QUEUE, most=1, terms=_TERMS, wants=wishes)
            self.store.ask(0, _QUEUE, enrolled=wishes)
            if not told.permits:
                return done
            (permit,) = told.permits
            _, attempts, _ = self.store.take(0, _QUEUE, permit.member, self.play.want(queue=_QUEUE))
            for one in attempts:
                by_flags(one)
            done += len(attempts)
            self.store.permit(_QUEUE, most=0, terms=_TERMS, returned=[(permit.fence, "done" if attempts else "unused")])
        return done
