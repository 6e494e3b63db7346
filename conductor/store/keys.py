"""Every key: its name, type, owner and death. The only place where a key is spelled in Python; scripts spell theirs from the same tag."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["CATALOGUE", "KeyKind", "Keys", "plain_tails"]


@dataclass(frozen=True, slots=True)
class KeyKind:
    """A kind of key: a pattern for what follows the partition's tag, its Redis type, who owns it, and when it dies."""

    pattern: str
    type: str
    owner: str
    death: str

    def matches(self, tail: str) -> bool:
        return re.fullmatch(self.pattern, tail) is not None


_RUN = r"run:[0-9a-f-]{36}"

CATALOGUE: tuple[KeyKind, ...] = (
    KeyKind("head", "hash", "every script", "never"),
    KeyKind("active", "hash", "start, commit, cancel", "a field with its run's end"),
    KeyKind("progress", "zset", "start, claim, commit", "a member with its run's end"),
    KeyKind("parked", "hash", "park_run", "a field when its run is woken"),
    KeyKind("wake", "zset", "whoever may move a parked run", "a member when its run is woken"),
    KeyKind("orphans", "zset", "every script that moves a run", "a member when its run is idle no more, or waits for other things too"),
    KeyKind("orphans:due", "zset", "every script that moves a run", "with its member of orphans"),
    KeyKind("runs", "zset", "start", "a member with its run's purge"),
    KeyKind("ended:(completed|failed|cancelled)", "zset", "the closing script", "a member with purge or retry"),
    KeyKind("ready:.+", "zset", "start, commit, sweeps", "a member with its claim"),
    KeyKind("pokes", "hash", "whoever makes ready", "never"),
    KeyKind("attended", "hash", "a drain that stays a while", "never"),
    KeyKind("repokes", "hash", "the stall sweep", "never"),
    KeyKind("leases", "zset", "claim, heartbeat", "a member with commit, give-back or the stall sweep"),
    KeyKind("due", "zset", "commit, start", "a member when it fires"),
    KeyKind(_RUN, "hash", "start", "purge"),
    KeyKind(_RUN + r":s\d+", "hash", "commit, claim", "purge"),
    KeyKind(_RUN + ":log", "list", "every script that moves the run", "purge"),
    KeyKind(_RUN + ":(err|live|cp)", "hash", "the holder of the fence", "purge"),
    KeyKind(_RUN + ":held", "list", "claim", "resume"),
    KeyKind(_RUN + r":e\d+", "hash", "claim, commit", "purge"),
    KeyKind(_RUN + r":e\d+:\d+", "hash", "claim, commit", "purge"),
    KeyKind(_RUN + r":e\d+:again", "zset", "commit, sweeps", "a member with its claim"),
    KeyKind(_RUN + r":v\d+:\d+", "hash", "stage", "purge; the staged sweep if its fence was lost"),
    KeyKind("staged", "zset", "stage", "the staged sweep"),
    KeyKind("graph:[0-9a-f]+", "hash", "start", "with its last run"),
    KeyKind("graphs", "hash", "start, purge", "a field with its graph"),
    KeyKind("key:.+", "string", "start", "key_retention_days after the end"),
    KeyKind("caller:.+", "string", "every caller", "an hour"),
    KeyKind("code:.+", "set", "a worker", "an hour after its last worker"),
    KeyKind("limited:.+", "zset", "ask", "a member with its claim"),
    KeyKind("limits", "set", "permit, set_limit", "a member when its limit is idle and not set by hand"),
    KeyKind("limit:[^:]+", "hash", "permit, set_limit", "when it is idle and not set by hand"),
    KeyKind("limit:[^:]+:(permits|back)", "zset", "permit", "a member with its return, or the end of its lease"),
    KeyKind("limit:[^:]+:granted", "hash", "permit", "a field with its permit"),
    KeyKind("limit:[^:]+:spent", "hash", "permit", "a window after the last permit"),
    KeyKind("limit:[^:]+:queues", "set", "permit", "a member when nothing of it waits"),
    KeyKind(r"limit:[^:]+:(turns|aside):.+", "zset", "permit", "a member when nothing of its key waits"),
    KeyKind(r"limit:[^:]+:key:(.|\n)+", "zset", "permit", "a member with its permit"),
    KeyKind("lanes", "set", "whoever enters a lane", "a member when its lane is empty"),
    KeyKind(r"lane:[^:]+", "hash", "whoever enters it", "when the lane is empty"),
    KeyKind(r"lane:[^:]+:active", "set", "start, and the script that admits", "a member with its run's end"),
    KeyKind(r"lane:[^:]+:queue", "zset", "start, retry", "a member when admitted or ended"),
    KeyKind(r"lane:[^:]+:turns", "hash", "start, retry", "when nobody is queued"),
    KeyKind("aside", "zset", "claim", "a member when taken back"),
    KeyKind("aside:.+", "list", "claim", "taken back"),
    KeyKind("holds", "hash", "hold", "unhold"),
    KeyKind("held:.+", "zset", "claim", "unhold"),
    KeyKind("outbox", "zset", "the script that ends an op", "a member when it is told"),
    KeyKind("ops", "zset", "start", "a member with its op's purge"),
    KeyKind("ops:open", "hash", "start, commit, cancel", "a field with its op's end"),
    KeyKind("queued:(retry|deferred_submit|scheduled_job)", "zset", "every script that moves an op", "a member with its claim or end"),
    KeyKind("budget:.+", "hash", "fire_due", "never"),
    KeyKind(_RUN + ":ops", "set", "start of an operation bound to it", "purge; a member with its end"),
    KeyKind(_RUN + ":called", "set", "fire_due, where what is bound to it ends with it", "purge"),
    KeyKind(_RUN + ":undo", "list", "the plan of what is undone", "a member when its undo stands; purge"),
    KeyKind(_RUN + ":sig", "hash", "signal, advance", "purge"),
    KeyKind(_RUN + ":buf", "hash", "signal, advance of a parked run", "when its run is woken"),
    KeyKind(_RUN + ":once", "hash", "the holder of the fence", "purge"),
    KeyKind("jobs", "zset", "put_job, tick_job", "a member when paused or dropped"),
    KeyKind("job:.+", "hash", "put_job", "dropped"),
    KeyKind("inbox:.+:ids", "zset", "deliver", "pruned"),
    KeyKind("inbox:.+", "stream", "deliver", "acknowledged"),
    KeyKind("grants:.+", "hash", "grant", "revoked"),
    KeyKind("notices", "stream", "every script that moves a run", "capped"),
    KeyKind("sweeps", "hash", "sweeps", "never"),
    KeyKind("workers", "hash", "workers", "pruned"),
    KeyKind("tokens", "hash", "add_token", "a field when its token is forgotten"),
    KeyKind("logins", "hash", "add_login", "a field with its logout, or the first login after its end"),
    KeyKind("audit", "stream", "the service", "capped"),
    KeyKind("lock:.+", "string", "sweeps", "seconds"),
)


def plain_tails() -> tuple[str, ...]:
    """What a run may have under one fixed name each (`log`, `err`, …), so that whoever takes it as a whole forgets nothing. What is said to
    a parked run is not part of the run."""
    found = (re.fullmatch(r":\(?([a-z|]+)\)?", kind.pattern.removeprefix(_RUN)) for kind in CATALOGUE if kind.pattern.startswith(_RUN))
    return tuple(tail for match in found if match for tail in match[1].split("|") if tail != "buf")


class Keys:
    """Builds keys of one namespace."""

    def __init__(self, namespace: str, partitions: int) -> None:
        self.namespace = namespace
        self.partitions = partitions
        self._tags = [f"conductor:{{{namespace}:{number:02x}}}:" for number in range(partitions)]

    catalogue = CATALOGUE

    def tag(self, partition: int) -> str:
        """What every key of the partition begins with."""
        return self._tags[partition]

    def of(self, partition: int, tail: str) -> str:
        return self._tags[partition] + tail

    def head(self, partition: int) -> str:
        return self._tags[partition] + "head"

    def run(self, run_id: str, tail: str = "") -> str:
        """A run's key; its home partition is the last byte of its id."""
        partition = int(run_id[-2:], 16)
        return f"{self._tags[partition]}run:{run_id}{':' if tail else ''}{tail}"

    def shard(self, run_id: str, index: int) -> str:
        """The hash that holds the record of step `index`."""
        return self.run(run_id) if index < 32 else self.run(run_id, f"s{index // 32}")

    def items(self, run_id: str, index: int, item: int) -> str:
        """The hash that holds the record of an item of an `each`."""
        return self.run(run_id, f"e{index}:{item // 64}")

    def kind_of(self, key: str) -> KeyKind | None:
        """What kind of key this is; None for one that nobody owns."""
        for tag in self._tags:
            if key.startswith(tag):
                tail = key[len(tag):]
                return next((kind for kind in CATALOGUE if kind.matches(tail)), None)
        return None
