"""A crowd of runs that are written at once, without being played: for what must not depend on how many there are.

Their records are whole as far as lists and retries look: they stand in the same indexes as runs that a worker has ended.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from conductor.ids import new_run_id
from conductor.records import Graph, Node
from conductor.store import Store

__all__ = ["CROWD", "gather", "replies"]

CROWD = Graph.build("crowd", (Node(0, "work", signature="a"),))

_WRITE = """
local tag, hash, now = ARGV[1], ARGV[2], tonumber(ARGV[3])
redis.call('HSET', tag .. 'graph:' .. hash, 'doc', ARGV[4])
for i = 5, #ARGV, 3 do
  local id, state, at = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2])
  local failed = state == 'failed' and 1 or 0
  redis.call('HSET', tag .. 'run:' .. id, 'w', 'crowd', 'h', hash, 'st', state, 'g', 1, 'q', 'q', 'p', 5, 't', at, 'e', at, 'pg', at,
    'l', failed, 'f', failed, '0', (failed == 1 and 'F' or 'C') .. ';1;1;0;0;0;0;', 's', at % 4 == 0 and 'bob' or 'ann')
  redis.call('RPUSH', tag .. 'run:' .. id .. ':log', 's;' .. at .. ';1;0')
  redis.call('ZADD', tag .. 'runs', at, id)
  redis.call('ZADD', tag .. 'ended:' .. state, now + 864000000, id)
  if failed == 1 then redis.call('HSET', tag .. 'run:' .. id .. ':err', '0:1', '{"type":"shop.CardError","kind":"permanent"}') end
end
"""


def gather(store: Store, count: int, state: Callable[[int], str] = lambda number: "completed") -> list[str]:
    """`count` ended runs, one a millisecond, the newest last. `state` says of each how it ended."""
    client: Any = store.client()
    seconds, _ = client.time()
    now, found = int(seconds) * 1000, []
    write = client.register_script(_WRITE)
    rows: dict[int, list[Any]] = {}
    for number in range(count):
        partition = number % store.partitions
        run_id = new_run_id(store.partitions, partition)
        found.append(run_id)
        rows.setdefault(partition, []).extend((run_id, state(number), now - count + number))
    for partition, given in rows.items():
        for first in range(0, len(given), 3000):
            head = [store.keys.tag(partition), CROWD.hash, now, CROWD.doc]
            write(keys=[store.keys.head(partition)], args=[*head, *given[first : first + 3000]])
    return found


def replies(client: Any, work: Callable[[], Any]) -> tuple[Any, int]:
    """What `work` gives, and how many commands the server has executed for it."""
    client.config_resetstat()
    found = work()
    stats = client.info("commandstats")
    return found, sum(one["calls"] for name, one in stats.items() if name not in ("cmdstat_config|resetstat", "cmdstat_info"))


