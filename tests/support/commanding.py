"""The command line in a process that stays: a line of JSON in, a line of JSON out. `python -m tests.support.commanding`.

Starting Python for each of many commands would be most of what a test waits for.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

from tests.support.processes import ROOT
from tests.support.server import die_with_parent

__all__ = ["Commander", "Said"]

_FOREIGN = ("celery", "kombu", "sqlalchemy", "fastapi", "tests.acceptance.doors_app")


class Said(NamedTuple):
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str


class Commander:
    """A process that runs commands, with nothing in its environment but what it is given."""

    def __init__(self, directory: Path, env: Mapping[str, str]) -> None:
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.commanding"], cwd=directory, env={**kept, "PYTHONPATH": str(ROOT), "COLUMNS": "200", **env},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, preexec_fn=die_with_parent,  # noqa: PLW1509
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stdin.close()  # type: ignore[union-attr]
        self._process.wait(20)

    def __call__(self, *arguments: str, input: str | None = None) -> Said:
        return Said(**self._asked({"arguments": arguments, "input": input}))

    @property
    def loaded(self) -> list[str]:
        """What it has imported of what only the other side needs. (The filters of `--where` know the store's library by name.)"""
        return list(self._asked({})["loaded"])

    def _asked(self, what: Mapping[str, Any]) -> Any:
        print(json.dumps(what), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()  # type: ignore[union-attr]
        assert answer, f"the command line died of {what}"
        return json.loads(answer)


def main() -> None:
    """Until there is no more to read."""
    from click.testing import CliRunner

    from conductor.cli import group

    for line in sys.stdin:
        asked = json.loads(line)
        if asked:
            result = CliRunner().invoke(group, asked["arguments"], input=asked["input"])
            told: Any = {"code": result.exit_code, "out": result.stdout, "err": result.stderr}
        else:
            told = {"loaded": [name for name in _FOREIGN if name in sys.modules]}
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
