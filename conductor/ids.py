"""Run ids: UUIDv7 whose last byte is the run's home partition, so that anyone can read a run's home from its id."""

from __future__ import annotations

import hashlib
import os
import re
import time

import uuid_utils

__all__ = ["derived_id", "home_of_key", "home_of_name", "home_of_start", "is_run_id", "new_run_id", "partition_of"]

_MOMENT_NS = 20_000_000
_SEED = int.from_bytes(os.urandom(8))
_FORM = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}\Z")


def new_run_id(partitions: int, partition: int | None = None) -> str:
    """A fresh id at home in `partition`, or in a random one that this process keeps for a moment: what is started in one go is then
    claimed in one go, by one poke."""
    home = hash((_SEED, os.getpid(), time.monotonic_ns() // _MOMENT_NS)) % partitions if partition is None else partition
    return f"{str(uuid_utils.uuid7())[:-2]}{home:02x}"


def derived_id(text: str, stamp_ms: int, partition: int) -> str:
    """The same id for the same text and moment, whoever asks: so that what is repeated finds what was first."""
    digest = hashlib.blake2b(text.encode(), digest_size=10).hexdigest()
    stamp = f"{stamp_ms & (1 << 48) - 1:012x}"
    return f"{stamp[:8]}-{stamp[8:]}-7{digest[:3]}-{int(digest[3], 16) & 3 | 8:x}{digest[4:7]}-{digest[7:17]}{partition:02x}"


def home_of_name(name: str, partitions: int) -> int:
    """Where a named thing that is no run lives: a job, a session."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest()) % partitions


def partition_of(run_id: str) -> int:
    """The home partition that an id names."""
    return int(run_id[-2:], 16)


def home_of_key(workflow: str, key: str, partitions: int) -> int:
    """Where a run with an idempotency key lives: the same for everybody who uses the key."""
    digest = hashlib.blake2b(f"{workflow}\0{key}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) % partitions


def home_of_start(workflow: str, key: str, lane: str, partitions: int) -> int | None:
    """Where a start must go: to its lane, else to its key; None where it may go anywhere."""
    if lane:
        return home_of_name(f"lane:{lane}", partitions)
    return home_of_key(workflow, key, partitions) if key else None


def is_run_id(text: str) -> bool:
    """Whether `text` has the form of a run id (it says nothing of whether the run exists)."""
    return _FORM.match(text) is not None
