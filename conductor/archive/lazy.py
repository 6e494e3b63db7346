"""The archive of a process that may never need it: opened at the first use, and anew after a failure. Nothing of SQL is imported before."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from conductor.errors import NoArchive
from conductor.locations import masked

if TYPE_CHECKING:
    from conductor.archive.door import Archive

__all__ = ["LazyArchive"]


class LazyArchive:
    """`configured` is known without looking; `open` connects, and raises what `Archive.open` raises."""

    def __init__(self, url: str | None = None, namespace: str = "") -> None:
        self._url, self._namespace = url, namespace
        self._lock = threading.Lock()
        self._opened: Archive | None = None

    @property
    def configured(self) -> bool:
        return bool(self._url)

    @property
    def one_host(self) -> bool:
        """Whether only processes of one host can share it."""
        return bool(self._url) and self.url.startswith("sqlite")

    @property
    def url(self) -> str:
        """The address, without credentials; empty where there is none."""
        return masked(self._url) if self._url else ""

    def open(self) -> Archive:
        """The archive. It serves all threads of a process and, after a fork, its children."""
        if not self._url:
            raise NoArchive
        with self._lock:
            if self._opened is None:
                from conductor import archive

                self._opened = archive.Archive.open(self._url, self._namespace)
            return self._opened
