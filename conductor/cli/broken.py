"""A module of the user's that cannot be imported: where it is wrong, in one line, and how to go on without it."""

from __future__ import annotations

import logging
import os
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

import conductor
from conductor.errors import ConductorError, DeclarationError

__all__ = ["BrokenModule", "broken", "quiet_imports"]

_OURS = str(Path(conductor.__file__).parent) + os.sep
_INSTALLED = tuple({str(Path(sysconfig.get_path(name))) + os.sep for name in ("purelib", "platlib", "stdlib")})


class BrokenModule(ConductorError):
    """{place}: {problem}"""


def broken(error: Exception) -> BrokenModule:
    """The error as one of ours, with the place in the user's files that brought it about."""
    file, line = _place(error)
    told = str(error) if isinstance(error, DeclarationError) else f"{type(error).__name__}: {_message(error)}"
    return BrokenModule(place=f"{file}:{line}", file=file, line=line, problem=" ".join(told.split()))


def _message(error: Exception) -> str:
    return error.msg if isinstance(error, SyntaxError) else str(error) or "no message"


def _place(error: Exception) -> tuple[str, int]:
    """The deepest line of the user's own: neither ours nor of an installed package nor of Python."""
    if isinstance(error, SyntaxError) and error.filename:
        return _short(error.filename), error.lineno or 0
    frames = [(frame.filename, frame.lineno or 0) for frame in traceback.extract_tb(error.__traceback__)]
    own = [(file, line) for file, line in frames if not file.startswith(("<", _OURS, *_INSTALLED))]
    file, line = (own or frames or [("an unknown file", 0)])[-1]
    return _short(file), line


def _short(file: str) -> str:
    here = os.getcwd() + os.sep
    return file.removeprefix(here)


@contextmanager
def quiet_imports() -> Iterator[None]:
    """What the user's modules print goes beside our answer. Celery logs the traceback of each that fails; here it becomes one line."""
    logger = logging.getLogger("celery.utils.dispatch.signal")
    before, logger.disabled = logger.disabled, True
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        logger.disabled = before
