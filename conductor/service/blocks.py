"""The log of a run in blocks of a fixed length, written out once for all who read it."""

from __future__ import annotations

from dataclasses import dataclass

from conductor.runs.history import Histories
from conductor.service.framing import frame

__all__ = ["BLOCK", "Block", "Blocks", "is_whole"]

BLOCK = 128


@dataclass(frozen=True, slots=True)
class Block:
    """`frames` are the events of a block as a stream shows them; `total` is how many the run has, `end` how its end is shown, if it has
    ended with the last of these."""

    total: int
    frames: tuple[bytes, ...]
    end: bytes | None = None


def is_whole(block: Block | None) -> bool:
    """A log only grows, so a block that is full stays as it is."""
    return block is not None and len(block.frames) == BLOCK


class Blocks:
    """Reads blocks, in any thread."""

    def __init__(self, histories: Histories) -> None:
        self._histories = histories

    def read(self, run_id: str, number: int) -> Block | None:
        """Block `number`, from 0, as it is now; None if nobody knows the run."""
        page = self._histories.page(run_id, number * BLOCK, BLOCK)
        if page is None:
            return None
        frames = tuple(frame(str(event["kind"]), event, id=int(event["number"])) for event in page.events)
        return Block(page.total, frames, None if page.end is None else frame("end", page.end.to_json()))
