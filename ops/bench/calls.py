"""What noise cannot move: Redis calls, commands and messages. Read from the server and the workers, not from us."""

from __future__ import annotations

import time
from collections.abc import Callable

from ops.bench.bed import Bed
from ops.bench.memory import valkey
from ops.bench.rows import Layout, Row, Size
from ops.bench.works import chain, fan

__all__ = ["ROWS"]


def _commands(bed: Bed) -> dict[str, int]:
    stats = valkey(bed).info("commandstats")
    return {name.removeprefix("cmdstat_"): int(values["calls"]) for name, values in stats.items()}


def _counted(bed: Bed, run: Callable[[], object]) -> dict[str, float]:
    """Calls by command while `run` runs, without what the idle system does in the same time anyway."""
    idle_from = time.monotonic()
    before = _commands(bed)
    time.sleep(2)
    between = _commands(bed)
    idle = time.monotonic() - idle_from
    began = time.monotonic()
    run()
    share = (time.monotonic() - began) / idle
    after = _commands(bed)
    return {name: after[name] - between.get(name, 0) - share * (between.get(name, 0) - before.get(name, 0)) for name in after}


_SCRIPTS = ("evalsha", "eval", "fcall", "evalsha_ro", "eval_ro", "fcall_ro")


def _script_calls(calls: dict[str, float]) -> float:
    return sum(calls.get(name, 0.0) for name in _SCRIPTS)


def _chain_calls(bed: Bed) -> dict[str, float]:
    return bed.once("chain calls", lambda: _counted(bed, lambda: bed.series(chain(1000), 5)))


def _fan_calls(bed: Bed) -> dict[str, float]:
    return bed.once("fan calls", lambda: _counted(bed, lambda: bed.series(fan(1000), 5)))


def calls_per_inline_step(bed: Bed, size: Size) -> float:
    """As a slope between chains of 100 and of 1,000, so that start and first claim, which are a run's and not a step's, do not count."""
    short = _counted(bed, lambda: bed.series(chain(100), 5))
    return (_script_calls(_chain_calls(bed)) - _script_calls(short)) / 4500


def calls_per_chain_step(bed: Bed, size: Size) -> float:
    return _script_calls(_chain_calls(bed)) / 5000


def calls_per_fan_step(bed: Bed, size: Size) -> float:
    return _script_calls(_fan_calls(bed)) / 5010


def commands_per_chain_step(bed: Bed, size: Size) -> float:
    """All commands, those inside scripts included: what the server really does for a step."""
    return sum(_chain_calls(bed).values()) / 5000


def commands_per_fan_step(bed: Bed, size: Size) -> float:
    return sum(_fan_calls(bed).values()) / 5010


def _messages(bed: Bed) -> int:
    """Celery tasks that workers received, without sweeps: ours are pokes, the peer's are its steps."""
    tasks: dict[str, int] = bed.ask("custom", verb="messages")["tasks"]
    return sum(count for name, count in tasks.items() if "sweep" not in name)


def messages_per_step(bed: Bed, size: Size) -> float:
    before = _messages(bed)
    bed.burst(chain(100), 50)
    return (_messages(bed) - before) / 5000


COUNTED = Layout(fresh="counted")

ROWS = [
    Row(
        "calls-inline", "script calls per inline step (slope between chains of 100 and 1,000)", "calls", calls_per_inline_step,
        more_is_better=False, most=1.0, layout=COUNTED, slow=True,
    ),
    Row(
        "calls-chain", "script calls per step, start and claim included (5 chains of 1,000)", "calls", calls_per_chain_step,
        more_is_better=False, layout=COUNTED, slow=True,
    ),
    Row(
        "calls-fan", "script calls per step in a fan-out of 1,000", "calls", calls_per_fan_step, more_is_better=False, most=1.0,
        layout=COUNTED, slow=True,
    ),
    Row(
        "commands-chain", "commands per step, inside scripts too (chain of 1,000)", "commands", commands_per_chain_step, {"celery": None},
        more_is_better=False, layout=COUNTED, slow=True,
    ),
    Row(
        "commands-fan", "commands per step, inside scripts too (fan-out of 1,000)", "commands", commands_per_fan_step, {"celery": None},
        more_is_better=False, layout=COUNTED, slow=True,
    ),
    Row(
        "messages", "broker messages per step (50 chains of 100)", "messages", messages_per_step, {"celery": None}, more_is_better=False,
        layout=COUNTED, slow=True,
    ),
]
