"""Large values outside the store: what a blob store is, how blobs are named, and the one that keeps them in files.

A blob is named `<namespace>/<run_id>/<what>.<digest>`. The digest is of its content, so a name never means two things: writing it twice
changes nothing, an attempt that lost its fence cannot change what another one committed, and what is read is what was written. A blob is
durable before anything names it and dies with its run; one whose writer died in between is an orphan, found by its age.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import unquote, urlsplit

from conductor.errors import BadInput, BlobMissing, BlobRefused, BlobUnreachable, ConductorError, CorruptPayload
from conductor.ids import is_run_id

__all__ = ["BlobStore", "FileBlobs", "KeptBlob", "check_name", "fetch", "keep", "open_blobs"]

_PART: Final = r"[A-Za-z0-9][A-Za-z0-9_.-]"
_NAME: Final = re.compile(rf"(?P<namespace>{_PART}{{0,63}})/(?P<run_id>[0-9a-f-]{{36}})/{_PART}{{0,199}}\Z")
_UNFINISHED: Final = ".part-"  # no blob's name begins with a dot
_TRIES: Final = 5


class BlobStore(Protocol):
    """What holds blobs. `get` of a name that is not there raises `KeyError` or `FileNotFoundError`; `delete` of one is no error."""

    def put(self, name: str, data: bytes, /) -> Any: ...

    def get(self, name: str, /) -> bytes: ...

    def delete(self, name: str, /) -> Any: ...


def check_name(name: str) -> str:
    """The name of a blob, or a refusal: it becomes a path, so nothing but its form is taken."""
    found = _NAME.match(name)
    if found is None or not is_run_id(found["run_id"]):
        raise BadInput(what="blob", field="name", problem=f"{name[:200]!r} is not <namespace>/<run_id>/<what>")
    return name


def keep(store: BlobStore, name: str, data: bytes) -> str:
    """Write a blob and tell the name it is found under: the given one and the digest of its content."""
    full = check_name(f"{name}.{_digest(data)}")
    try:
        store.put(full, data)
    except ConductorError:
        raise
    except Exception as error:  # a user's store may raise anything
        raise BlobUnreachable(store=_shown(store), name=full, problem=f"{type(error).__name__}: {error}") from error
    return full


def fetch(store: BlobStore, name: str, size: int) -> bytes:
    """Read a blob that has `size` bytes, and nothing else that may stand under its name."""
    try:
        data = store.get(check_name(name))
    except ConductorError:
        raise
    except (KeyError, FileNotFoundError) as error:
        raise BlobMissing(store=_shown(store), name=name) from error
    except Exception as error:
        raise BlobUnreachable(store=_shown(store), name=name, problem=f"{type(error).__name__}: {error}") from error
    if data is None:
        raise BlobMissing(store=_shown(store), name=name)
    data = bytes(data)
    if len(data) != size or not name.endswith(f".{_digest(data)}"):
        raise CorruptPayload(prefix="b1", problem=f"blob {name} is not the {size} bytes that were written under this name")
    return data


def open_blobs(url_or_object: Any) -> BlobStore:
    """A blob store from a setting: `file:///directory`, or any object that has put, get and delete."""
    if isinstance(url_or_object, str):
        return FileBlobs(url_or_object)
    if missing := [verb for verb in ("put", "get", "delete") if not callable(getattr(url_or_object, verb, None))]:
        raise BlobRefused(
            store=type(url_or_object).__name__, problem=f"it has no {' and no '.join(missing)}",
            remedy="give a URL file:///directory or an object with put(name, data), get(name) and delete(name)",
        )
    store: BlobStore = url_or_object
    return store


@dataclass(frozen=True, slots=True)
class KeptBlob:
    """A blob as a listing tells it. `written_at` is seconds since 1970 on the clock of the file system."""

    name: str
    size: int
    written_at: float


class FileBlobs:
    """Blobs as files below one directory, which all hosts must share. Only the owner may read them; each appears whole or not at all."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.directory = _directory(url)
        try:
            self.directory.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise BlobRefused(
                store=url, problem=f"{self.directory}: {error.strerror}",
                remedy="make the directory above it, on a file system that all hosts share, and let this user write there",
            ) from error

    def put(self, name: str, data: bytes, /) -> None:
        path = self._path(name)
        part = path.with_name(f"{_UNFINISHED}{secrets.token_hex(8)}")
        file = self._created(part)
        try:
            with os.fdopen(file, "wb") as output:
                output.write(data)
                output.flush()
                os.fsync(output.fileno())
            part.replace(path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        _sync(path.parent)

    def get(self, name: str, /) -> bytes:
        try:
            return self._path(name).read_bytes()
        except FileNotFoundError:
            raise BlobMissing(store=self.url, name=name) from None

    def delete(self, name: str, /) -> None:
        path = self._path(name)
        path.unlink(missing_ok=True)
        with suppress(OSError):  # not empty, or not there
            path.parent.rmdir()

    def names(self, prefix: str = "") -> Iterator[str]:
        """The names that begin with `prefix`, in order: of a namespace (`shop/`), of a run (`shop/<run_id>/`)."""
        return (blob.name for blob in self.listing(prefix))

    def listing(self, prefix: str = "", *, before: float | None = None) -> Iterator[KeptBlob]:
        """What is kept under names that begin with `prefix`; with `before`, only what was written before that moment."""
        for path in self._files(prefix):
            name = path.relative_to(self.directory).as_posix()
            if path.name.startswith(_UNFINISHED) or not name.startswith(prefix):
                continue
            with suppress(FileNotFoundError):  # deleted while we looked
                found = path.stat()
                if before is None or found.st_mtime < before:
                    yield KeptBlob(name, found.st_size, found.st_mtime)

    def drop_unfinished(self, before: float) -> int:
        """Delete what a killed writer left half-written before that moment; tell how many."""
        dropped = 0
        for path in self._files(""):
            with suppress(FileNotFoundError):
                if path.name.startswith(_UNFINISHED) and path.stat().st_mtime < before:
                    path.unlink()
                    dropped += 1
        return dropped

    def _path(self, name: str) -> Path:
        return self.directory / check_name(name)

    def _created(self, part: Path) -> int:
        """An open, new file. Between making its directory and using it a delete of the run's last blob may take the directory away."""
        for _ in range(_TRIES):
            self._make_directories(part.parent)
            with suppress(FileNotFoundError):
                return os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        raise BlobUnreachable(store=self.url, name=part.parent.name, problem="its directory is taken away again and again")

    def _make_directories(self, run: Path) -> None:
        for directory in (run.parent, run):
            with suppress(FileExistsError, FileNotFoundError):
                directory.mkdir(mode=0o700)
                _sync(directory.parent)

    def _files(self, prefix: str) -> Iterator[Path]:
        namespace, _, run = prefix.partition("/")
        for home in _sorted(self.directory, namespace):
            for folder in _sorted(home, run.partition("/")[0]):
                yield from _sorted(folder, "")


def _sorted(directory: Path, beginning: str) -> list[Path]:
    try:
        return sorted(path for path in directory.iterdir() if path.name.startswith(beginning))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _directory(url: str) -> Path:
    parts = urlsplit(url)
    path = Path(unquote(parts.path))
    here = parts.scheme == "file" and parts.netloc in ("", "localhost") and path.is_absolute() and "\0" not in url
    if not here or parts.query or parts.fragment:
        raise BlobRefused(
            store=url, problem="it is not of the form file:///absolute/directory",
            remedy="give that, or an object with put(name, data), get(name) and delete(name)",
        )
    return path


def _sync(directory: Path) -> None:
    """Make a new name durable: without it a power cut could leave a committed reference without its file."""
    with suppress(FileNotFoundError):
        handle = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def _shown(store: BlobStore) -> str:
    return str(getattr(store, "url", "") or type(store).__name__)
