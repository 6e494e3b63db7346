"""The filters of a list that need more than a run's record: what it waits for, at which step it stands, which kind of error it met.

Each is a few round trips for a whole page of runs, whatever is in the store beside them, and looks at a bounded part of each run.

* *At a step*: the step stands ready, runs, waits, will be repeated, or has failed. Of a run that has ended only a failed step counts: what
  had not ended by then is cancelled with it. An `each` runs as long as its items do.
* *A kind of error*: a step or item that has failed, or waits for its next attempt, and whose last attempt met such an error. Errors of an
  earlier life that a retry has made good do not count. Of a run with many errors the first steps and items are looked at, not all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from conductor.idleness import active_waiters, waits_for
from conductor.state import StepState
from conductor.store.reads import RunRecord, Source, as_dict, parse_step, read_graph

__all__ = ["ERROR_WORDS", "at_step", "is_of_kind", "last_errors", "sift", "waiting_for"]

ERROR_WORDS = ("transient", "permanent", "unknown", "outcome_unknown", "effect_in_doubt", "poison")
"""Kinds of errors that are not named by a class."""

_HERE = frozenset({StepState.READY, StepState.RUNNING, StepState.WAITING, StepState.RETRY_PENDING, StepState.FAILED})
_REPEATED = (StepState.FAILED, StepState.RETRY_PENDING, StepState.READY)
_NAMES = 2_000  # names of errors that are read of one run
_PLACES = 16  # steps and items of one run whose errors are read
_Place = tuple[int, int]  # index and item, -1 for the step itself


def sift(source: Source, runs: Sequence[RunRecord], *, signal: str = "", step: str = "", error_kind: str = "") -> list[RunRecord]:
    """Those of the runs that wait for `signal`, stand at `step` and have met an `error_kind`; what is empty is not asked."""
    left = [run for run in runs if waiting_for(source, run, signal)] if signal else list(runs)
    if step and left:
        left = at_step(source, left, step)
    if error_kind and left:
        met = _met(source, left, error_kind)
        left = [run for run in left if run.run_id in met]
    return left


def waiting_for(source: Source, run: RunRecord, name: str) -> bool:
    """Whether a run waits for the signal, or in the step, of this name."""
    return bool(run.waiting) and waits_for(active_waiters(run, read_graph(source, run.partition, run.graph)), name)


def at_step(source: Source, runs: Sequence[RunRecord], name: str) -> list[RunRecord]:
    """Those of the runs that stand at the step of this name, or failed at it."""
    places = [(run, read_graph(source, run.partition, run.graph).index_of(name)) for run in runs]
    having = [(run, index) for run, index in places if index is not None]
    pipe = source.client().pipeline(transaction=False)
    for run, index in having:
        pipe.hget(source.keys.shard(run.run_id, index), str(index))
    texts = pipe.execute() if having else []
    return [run for (run, _), text in zip(having, texts, strict=True) if text is not None and _is_here(run, parse_step(text).state)]


def _is_here(run: RunRecord, state: StepState) -> bool:
    return state is StepState.FAILED if run.ended else state in _HERE


def is_of_kind(error: Mapping[str, Any], kind: str) -> bool:
    """Whether an error is of this kind: by its word, or by its class with or without the module."""
    name = str(error.get("type") or "")
    return kind in (error.get("kind"), name, name.rpartition(".")[2])


def _met(source: Source, runs: Sequence[RunRecord], kind: str) -> frozenset[str]:
    """Ids of the runs in which a failed or repeated step or item met such an error last."""
    asked = [(run, place, attempt, name) for run, names in _names(source, runs) for place, (attempt, name) in last_errors(names).items()]
    pipe = source.client().pipeline(transaction=False)
    for run, (index, item), _, _ in asked:
        key = source.keys.shard(run.run_id, index) if item < 0 else source.keys.items(run.run_id, index, item)
        pipe.hget(key, str(index if item < 0 else item))
    records = [parse_step(text) for text in (pipe.execute() if asked else [])]
    open_ones: dict[str, list[str]] = {}
    for (run, _, attempt, name), record in zip(asked, records, strict=True):
        if record.state in _REPEATED and record.attempt == attempt:
            open_ones.setdefault(run.run_id, []).append(name)
    pipe = source.client().pipeline(transaction=False)
    for run_id, names in open_ones.items():
        pipe.hmget(source.keys.run(run_id, "err"), names)
    replies = pipe.execute() if open_ones else []
    told = zip(open_ones, replies, strict=True)
    return frozenset(run_id for run_id, texts in told if any(text is not None and is_of_kind(as_dict(text), kind) for text in texts))


def _names(source: Source, runs: Sequence[RunRecord]) -> list[tuple[RunRecord, Iterable[str]]]:
    """Under which names each run that has any keeps its errors. Of very many a part is read, with what they say."""
    pipe = source.client().pipeline(transaction=False)
    for run in runs:
        pipe.hlen(source.keys.run(run.run_id, "err"))
    counted = [(run, count) for run, count in zip(runs, pipe.execute(), strict=True) if count]
    pipe = source.client().pipeline(transaction=False)
    for run, count in counted:
        key = source.keys.run(run.run_id, "err")
        if count <= _NAMES:
            pipe.hkeys(key)
        else:
            pipe.hscan(key, 0, count=_PLACES)
    replies = pipe.execute() if counted else []
    return [(run, reply[1] if isinstance(reply, tuple) else reply) for (run, _), reply in zip(counted, replies, strict=True)]


def last_errors(names: Iterable[str]) -> dict[_Place, tuple[int, str]]:
    """Of each step and item the attempt that met an error last, and the name of that error; steps first, then items in their order."""
    latest: dict[_Place, tuple[int, int, str]] = {}
    for name in names:
        place, _, tail = name.rpartition(":")
        attempt, _, generation = tail.partition("@")
        index, _, item = place.partition(":")
        if not (index.isdigit() and attempt.isdigit() and (not item or item.isdigit())):
            continue
        where, found = (int(index), int(item or -1)), (int(generation or 1), int(attempt), name)
        latest[where] = max(found, latest.get(where, found))
    order = sorted(latest, key=lambda where: (where[1] >= 0, where))[:_PLACES]
    return {where: latest[where][1:] for where in order}
