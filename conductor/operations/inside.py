"""Operations that the code of a step calls or submits: what a repeated attempt of that step must find again.

Authority: the store, beside the step (`run:<id>:once`, field `index[:item]:call:<number>`). The script that makes the operation writes
there what was asked for; later the answer stands beside it (`call:<number>=`), or that the operation is over without success and without
doubt. So the step's own record says that a call was made, and what it gave, for as long as the run can be repeated, whatever becomes of the
operation's.

The operation has one id, and so one key outside, in all attempts and lives of its run. A new life begins it anew (`renew.lua`) with the
doubt that it had. Numbers follow the order of calls: code that asks for something else under a number is told so, because the answer it
would get is to another question.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from conductor import codec
from conductor.declare.context import RUNNING, Ctx
from conductor.errors import CallChanged
from conductor.ids import derived_id, partition_of
from conductor.state import StepState
from conductor.store.reads import parse_step, read_now, read_run

if TYPE_CHECKING:
    from conductor.records import Attempt
    from conductor.wiring import Engine

__all__ = ["Asked", "in_doubt", "look_again_ms", "running_step"]

_SOONEST_MS, _LATEST_MS = 500, 30_000


def running_step() -> Ctx | None:
    """The step whose code is running here, if a worker runs it; its verifiers are nobody's step."""
    inside = RUNNING.get()
    return inside if inside is not None and inside.held is not None else None


@dataclass(frozen=True, slots=True)
class Asked:
    """One call or submission in a step, by its number."""

    ctx: Ctx
    capability: str
    number: str
    digest: str

    @classmethod
    def next(cls, ctx: Ctx, capability: str, payload: str, session: str) -> Asked:
        return cls(ctx, capability, ctx.next_call(), codec.fingerprint(payload, capability, session))

    @property
    def held(self) -> Attempt:
        assert self.ctx.held is not None
        return self.ctx.held

    @property
    def operation_id(self) -> str:
        """Derived from the step's key, in the run's partition."""
        run_id = self.held.run_id
        stamp = int(run_id.replace("-", "")[:12], 16)
        return derived_id(f"{self.ctx.key}\0{self.capability}\0{self.number}", stamp, partition_of(run_id))

    @property
    def bond(self) -> str:
        """What binds the operation to the run, where it is called from, and what is written there; see `fragments/called.lua`."""
        held = self.held
        place = f"{held.index}" if held.item is None else f"{held.index}:{held.item}"
        return f"{held.run_id};{held.generation};@{place}\n{self._name}\n{self._text()}"

    @property
    def _name(self) -> str:
        return f"call:{self.number}"

    def _text(self, **more: Any) -> str:
        return codec.encode({"asked": self.digest, **more})

    def known(self) -> Mapping[str, Any] | None:
        """What an earlier attempt asked for, and whether that is over. None if it did not get here."""
        payload = self.ctx.load_once(self._name)
        found: Mapping[str, Any] | None = None if payload is None else codec.decode(payload)
        return found

    def is_same(self, known: Mapping[str, Any]) -> bool:
        return bool(known["asked"] == self.digest)

    def answer(self) -> str | None:
        """The recorded answer, as a payload."""
        return self.ctx.load_once(f"{self._name}=")

    def keep_answer(self, result: Any, limit: int) -> None:
        what = f"answer of {self.capability} in step {self.ctx.step}"
        self.ctx.save_once(f"{self._name}=", codec.encode(result, limit=limit, what=what))

    def keep_asked(self, **more: Any) -> None:
        """That it was asked for; with `over` that it has ended without success, and nobody need wonder what it has done."""
        self.ctx.save_once(self._name, self._text(**more))

    def changed(self) -> CallChanged:
        return CallChanged(step=self.ctx.step, number=self.number, capability=self.capability, operation_id=self.operation_id)


def in_doubt(engine: Engine, operation_id: str) -> bool:
    """Whether an operation that has ended may have done something that nobody has heard of."""
    record = parse_step(engine.store.values(engine.store.keys.run(operation_id), ["0"])[0])
    return record.state is StepState.RUNNING or "d" in record.flags.partition("w")[0]


def look_again_ms(engine: Engine, operation_id: str, due: int) -> int:
    """When a step looks again whether its call has ended, which the end itself brings forward: the longer it has lasted, the later."""
    run, now = read_run(engine.store, operation_id), read_now(engine.store)
    age = now - max(run.created_at, run.reopened_at) if run is not None else 0
    return max(0, due - now) + max(_SOONEST_MS, min(_LATEST_MS, age // 2))
