"""Puts scripts together: one verb a file, the fragments it uses, and locals for the arguments its header names.

A header has three lines that begin with `--!`: `args:` (names of ARGV in order), `use:` (fragments, in order) and `result:`. State letters
come from `state.py`, so that no script spells one.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from conductor.state import RUN, RunState, StepState, terminal

__all__ = ["ATTENDED_MS", "NOTICE_MS", "Script", "load", "names"]

NOTICE_MS = 50
"""Progress of one run within a window of so many milliseconds is told once; a change of its state at once."""

ATTENDED_MS = 500
"""How long a promise to look again is worth: longer than a drain may last, so that one that goes on renews it in time."""

_LUA = Path(__file__).parent / "lua"
_HEADER = re.compile(r"^--! (args|use|result): (.*)$", re.MULTILINE)
# A full server still lets work end: only starts are refused when memory is exhausted.
_REFUSED_WHEN_FULL = frozenset({"start_run"})


@dataclass(frozen=True)
class Script:
    """A verb, ready to be sent. `plain` is for servers that do not know the shebang."""

    name: str
    args: tuple[str, ...]
    result: str
    text: str
    plain: str

    @cached_property
    def sha(self) -> str:
        return hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()

    @cached_property
    def plain_sha(self) -> str:
        return hashlib.sha1(self.plain.encode(), usedforsecurity=False).hexdigest()


def names() -> tuple[str, ...]:
    """All verbs."""
    return tuple(sorted(path.stem for path in _LUA.glob("*.lua")))


@cache
def load(name: str) -> Script:
    """The verb `name`, put together."""
    body = (_LUA / f"{name}.lua").read_text()
    header = dict(_HEADER.findall(body))
    args = tuple(header["args"].split())
    parts = [f"local {', '.join(args)} = {', '.join(f'ARGV[{i}]' for i in range(1, len(args) + 1))}"]
    parts += [_fragment(fragment) for fragment in header["use"].split()]
    text = "\n".join([*parts, body])
    # Only the names that occur: a script may have two hundred at most.
    plain = "\n".join([*(line for name, line in _names() if re.search(rf"\b{name}\b", text)), text])
    flags = "" if name in _REFUSED_WHEN_FULL else " flags=allow-oom"
    return Script(name, args, header["result"], f"#!lua{flags}\n{plain}", plain)


@cache
def _fragment(name: str) -> str:
    return (_LUA / "fragments" / f"{name}.lua").read_text()


@cache
def _names() -> tuple[tuple[str, str], ...]:
    """What scripts call states, and two durations: each name, and the line that declares it."""
    final = ", ".join(f"['{state}'] = true" for state in sorted(terminal(RUN)))
    values = {state.name: f"'{state.letter}'" for state in StepState if state is not StepState.CANCELLED}
    values |= {f"RUN_{state.name}": f"'{state}'" for state in RunState}
    values |= {"TERMINAL": f"{{{final}}}", "NOTICE_MS": str(NOTICE_MS), "ATTENDED_MS": str(ATTENDED_MS)}
    return tuple((name, f"local {name} = {value}") for name, value in values.items())
