"""Writes what of the documentation is made from the code: `python -m ops.reference`."""

from __future__ import annotations

from celery import Celery

from conductor import Conductor
from conductor.service import asgi
from conductor.service.reference import PAGE, write

__all__ = ["main"]


def main() -> None:
    """Nothing is connected: the routes alone are looked at."""
    nowhere = "redis://127.0.0.1:1/0"
    PAGE.write_text(write(asgi(Conductor(Celery("reference", broker=nowhere), redis_url=nowhere))))


if __name__ == "__main__":
    main()
