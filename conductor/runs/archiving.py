"""A run of the store as a row of the archive. Pure but for the reading: what a row is found by is taken from its snapshot."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from conductor import codec
from conductor.archive import ArchivedRun, Kind
from conductor.errors import BadInput, CorruptPayload, StoreUnreachable
from conductor.records import NodeKind
from conductor.state import RUN, RunState, StepState, terminal
from conductor.store.copying import Restless, read_snapshot
from conductor.store.notices import Unreachable
from conductor.store.reads import parse_step
from conductor.store.snapshots import Snapshot, parse_snapshot

if TYPE_CHECKING:
    from conductor.wiring import Engine

__all__ = ["archived", "blobs_of", "open_snapshot", "put_rows", "rows_of"]

logger = logging.getLogger(__name__)

_ENDED = terminal(RUN)
_DAY_MS = 86_400_000


def archived(snapshot: Snapshot, namespace: str, kind: Kind, *, retention_days: float = 0) -> ArchivedRun:
    """The row of a run. Nothing in it depends on when it was made, so a repeated put is the same row."""
    run, ended = snapshot.fields, int(snapshot.fields.get("e") or 0)
    moved = max(int(run.get("pg") or 0), int(run.get("nt") or 0))
    state = RunState(run["st"])
    kept = int(run.get("rc" if state is RunState.COMPLETED else "rf") or 0)
    waiting, failed = _steps(snapshot)
    return ArchivedRun(
        namespace=namespace, run_id=snapshot.run_id, generation=int(run.get("g") or 1), n=snapshot.n, kind=kind, state=state,
        workflow=run.get("w", ""), created_at_ms=int(run.get("t") or 0), progress_at_ms=moved,
        ended_at_ms=ended or None, idle_since_ms=int(run.get("is") or 0) or None,
        delete_after_ms=ended + kept + int(retention_days * _DAY_MS) if state in _ENDED else None, reason=run.get("wy", ""),
        key=run.get("k", ""), session=run.get("s", ""), version=run["h"], error_kind=_error_kind(snapshot, failed),
        tags=tuple(filter(None, run.get("tg", "").split(","))), failed_steps=tuple(name for _, name in failed),
        waiting_for=tuple(waiting), blobs=blobs_of(snapshot), snapshot=snapshot.to_bytes(),
    )


def _steps(snapshot: Snapshot) -> tuple[list[str], list[tuple[int, str]]]:
    """The names of what waits, and index and name of what failed."""
    shards = {0: snapshot.fields}
    for tail, pairs in snapshot.keys.items():
        if tail[0] == "s" and tail[1:].isdigit():
            shards[int(tail[1:])] = dict(zip(pairs[::2], pairs[1::2], strict=True))
    waiting, failed = [], []
    for node in snapshot.graph.nodes:
        text = shards.get(node.index // 32, {}).get(str(node.index))
        state = parse_step(text).state
        if state is StepState.WAITING and node.kind in (NodeKind.WAIT, NodeKind.AGENT):
            waiting.append(node.signal or node.name)
        elif state is StepState.FAILED:
            failed.append((node.index, node.name))
    return waiting, failed


def _error_kind(snapshot: Snapshot, failed: Sequence[tuple[int, str]]) -> str:
    """The class of the last error of the first failed step, without its module."""
    if not failed:
        return ""
    pairs, index = snapshot.keys.get("err", []), failed[0][0]
    told = [text for name, text in zip(pairs[::2], pairs[1::2], strict=True) if name.split(":")[0] == str(index)]
    try:
        return str(json.loads(told[-1]).get("type", "")).rpartition(".")[2] if told else ""
    except (ValueError, AttributeError):
        return ""


def blobs_of(snapshot: Snapshot) -> tuple[str, ...]:
    """The names of the blobs that live as long as this run: those under its own id, for a fork may refer to others."""
    return tuple(sorted({name for text in snapshot.payloads() for name in _references(text) if f"/{snapshot.run_id}/" in name}))


def _references(text: str) -> Iterator[str]:
    if text.startswith("b1:"):
        try:
            yield from codec.blob_names(text)
        except CorruptPayload:
            return


def open_snapshot(row: ArchivedRun) -> Snapshot:
    """What a row that was read with its snapshot holds. ValueError, KeyError or TypeError if it cannot be read."""
    assert row.snapshot is not None
    return parse_snapshot(row.run_id, row.snapshot)


def rows_of(
    engine: Engine, run_ids: Iterable[str], kind: Kind, *, restless: Callable[[str], object] = lambda run_id: None,
) -> list[tuple[Snapshot, ArchivedRun]]:
    """The rows of several runs as they stand now. One that cannot be read is told and left out: it must not keep the others. One that would
    not hold still is left out as well, and told to `restless`."""
    found, days = [], engine.settings.archive_retention_days
    for run_id in run_ids:
        try:
            snapshot = read_snapshot(engine.store, run_id)
            if snapshot is not None:
                found.append((snapshot, archived(snapshot, engine.store.namespace, kind, retention_days=days)))
        except (StoreUnreachable, *Unreachable):
            raise
        except Restless:
            restless(run_id)
        except Exception as error:
            logger.warning("run %s cannot be copied to the archive: %s: %s", run_id, type(error).__name__, error)
    return found


def put_rows(engine: Engine, rows: Sequence[ArchivedRun]) -> set[str]:
    """Put rows, one by one if one of them is refused; tells which runs the archive has now as they were given. Of a run whose greater row
    is of a history that the store has lost it has another."""
    archive = engine.archive.open()
    try:
        return archive.keep(rows)
    except BadInput:
        taken: set[str] = set()
        for row in rows:
            try:
                taken |= archive.keep([row])
            except BadInput as refused:
                logger.warning("run %s cannot be copied to the archive: %s", row.run_id, refused)
        return taken
