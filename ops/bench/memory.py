"""Bytes that finished work leaves in Redis. Read from the server, not from us.

Memory is `used_memory` without the buffers of clients, of the append-only file and of replication, after `MEMORY PURGE`, as a difference
over many runs: indexes, event logs, hash tables grown to powers of two and allocator rounding are all in it.
"""

from __future__ import annotations

from typing import Any

from ops.bench.bed import Bed
from ops.bench.processes import Valkey
from ops.bench.rows import Layout, Row, Size
from ops.bench.works import Work, chain, one

__all__ = ["ROWS", "dataset_bytes", "valkey"]

_BUFFERS = ("mem_clients_normal", "mem_clients_slaves", "mem_aof_buffer", "mem_replication_backlog", "mem_cluster_links")


def valkey(bed: Bed) -> Any:
    """The client of the bed's server, for reading its own counters."""
    assert isinstance(bed.server, Valkey)
    return bed.server.client


def dataset_bytes(bed: Bed) -> int:
    client = valkey(bed)
    client.execute_command("MEMORY", "PURGE")
    memory = client.info("memory")
    return int(memory["used_memory"]) - sum(int(memory.get(name, 0)) for name in _BUFFERS)


def _grown(bed: Bed, work: Work, count: int) -> float:
    """Bytes that `count` finished pieces of work leave behind."""
    bed.burst(work, 20)
    before = dataset_bytes(bed)
    bed.ask("accept", work=work.doc(), count=count)
    bed.ask("settle")
    bed.ask("verify")
    return dataset_bytes(bed) - before


def bytes_per_step(bed: Bed, size: Size) -> float:
    count = size.pick(200, 20)
    return _grown(bed, chain(100), count) / (count * 100)


def bytes_per_run(bed: Bed, size: Size) -> float:
    count = size.pick(20_000, 500)
    return _grown(bed, one, count) / count


ROWS = [
    Row(
        "bytes-step", "Redis memory per finished no-op step (200 chains of 100, event log included)", "bytes", bytes_per_step,
        {"celery": None}, more_is_better=False, most=500, layout=Layout(fresh="bytes of steps"), slow=True, quick=True,
        quick_work="Redis memory per finished no-op step (20 chains of 100, event log included)",
    ),
    Row(
        "bytes-run", "Redis memory per finished one-step run (20,000 runs, all included)", "bytes", bytes_per_run, {"celery": None},
        more_is_better=False, most=1500, layout=Layout(fresh="bytes of runs"), slow=True,
    ),
]
