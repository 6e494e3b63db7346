"""The only JSON boundary. A stored payload is text: the name of its format, a colon, and the value (`j1:{"id":42}`).

`j1` is plain JSON. A user's codec (encryption) has its own name, turns JSON text into any text and back, and is read for ever after by
that name, so that payloads of several formats may stand in one store. `b1` is a reference: `b1:<bytes>:<name>` stands for the payload
kept under that name in the blob store of this process. The name ends with a digest of what it names, so that an attempt that lost its
fence can never change what another one committed. Nothing that JSON cannot carry faithfully is written: no NaN, no
NUL, nothing deeper or larger than its limit.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Protocol

from pydantic import BaseModel, SecretBytes, SecretStr
from pydantic_core import PydanticSerializationError, from_json, to_json, to_jsonable_python

from conductor.blobs import BlobStore, check_name, fetch, keep
from conductor.errors import BadInput, CorruptPayload, NoBlobStore, UnknownFormat, ValueTooLarge

__all__ = [
    "BLOB_LIMIT", "LIMIT", "LONGEST_SESSION", "MAX_DEPTH", "NULL", "OFFLOAD_ABOVE", "Codec", "blob_names", "blob_store", "canonical",
    "check_controls", "check_json", "check_session", "check_text", "decode", "drop_blobs", "encode", "fingerprint", "has_blobs",
    "join_list", "offload", "pack", "plain", "register_codec", "serialization_problem", "size_limit", "split_list", "unpack",
    "use_blobs",
]

logger = logging.getLogger(__name__)

LIMIT = 1_048_576  # bytes of one payload
OFFLOAD_ABOVE = 65_536  # bytes; what is larger goes to the blob store, where there is one
BLOB_LIMIT = 1_073_741_824  # bytes of one payload that goes to the blob store
LONGEST_SESSION = 256
MAX_DEPTH = 100  # the parser itself stops at 200
NULL = "j1:null"
_LONGEST_NUMBER = 4000  # digits; the parser stops at 4300

_PLAIN = "j1"
_BLOB = "b1"
_NAME = re.compile(r"[a-z][a-z0-9]{0,15}\Z")
_STRINGS = re.compile(r'"(?:[^"\\]|\\.)*"')
_MAYBE_CONTROL = re.compile(r"\\[bf]|\\u00[01]|[\x7f-\x9f]")  # as JSON spells them; `\\b` in a text looks so too
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


class Codec(Protocol):
    """What a user's codec does with the JSON text of a payload. `decode(encode(text))` must give the text back."""

    def encode(self, text: str, /) -> str: ...

    def decode(self, body: str, /) -> str: ...


_codecs: dict[str, Codec] = {}
_writer: str = _PLAIN
_blobs: BlobStore | None = None


def register_codec(prefix: str, codec: Codec, *, write: bool = True) -> None:
    """Read payloads named `prefix` with `codec`, and with `write` also write all new ones so. Register it in every process, before work."""
    global _writer
    if not _NAME.match(prefix) or prefix in (_PLAIN, _BLOB):
        raise BadInput(what="codec", field="prefix", problem=f"{prefix!r} is not a new name of small letters and digits")
    _codecs[prefix] = codec
    if write:
        _writer = prefix


def encode(value: Any, *, limit: int = LIMIT, what: str = "value") -> str:
    """The payload of a value. `what` names it in the error if it cannot be carried."""
    if value is None and _writer == _PLAIN:
        return NULL
    try:
        text = to_json(value, by_alias=False, round_trip=True).decode()
    except PydanticSerializationError as error:
        raise BadInput(what=what, field="value", problem=serialization_problem(error)) from None
    check_json(text, value, limit=limit, what=what)
    if len(text) > _LONGEST_NUMBER or "NaN" in text or "Infinity" in text:
        try:  # a number too long for the parser, or NaN from an iterator that is used up by now
            from_json(text, allow_inf_nan=False)
        except ValueError as error:
            raise BadInput(what=what, field="value", problem=f"it could not be read again: {error}") from None
    return pack(text)


def decode(payload: str) -> Any:
    """The plain value of a payload."""
    text = unpack(payload)
    try:
        return from_json(text, allow_inf_nan=False)
    except ValueError as error:
        raise CorruptPayload(prefix=payload.partition(":")[0], problem=str(error)) from None


def pack(text: str) -> str:
    """Put checked JSON text into the format that this process writes."""
    if _writer == _PLAIN:
        return f"j1:{text}"
    return f"{_writer}:{_codecs[_writer].encode(text)}"


def unpack(payload: str) -> str:
    """The JSON text inside a payload."""
    if payload.startswith("j1:"):
        return payload[3:]
    prefix, colon, body = payload.partition(":")
    if prefix == _BLOB and colon:
        return unpack(_fetched(payload))
    codec = _codecs.get(prefix)
    if codec is None or not colon:
        raise UnknownFormat(prefix=prefix[:16] if colon else "", known=", ".join((_PLAIN, *_codecs)))
    try:
        return codec.decode(body)
    except Exception as error:
        raise CorruptPayload(prefix=prefix, problem=f"its codec raised {type(error).__name__}") from error


def use_blobs(store: BlobStore | None) -> None:
    """Keep large payloads in `store` from now on, and follow references into it. Call it in every process, before work."""
    global _blobs
    _blobs = store


def blob_store() -> BlobStore | None:
    """The blob store of this process."""
    return _blobs


def has_blobs() -> bool:
    """Whether this process has a blob store."""
    return _blobs is not None


def drop_blobs(names: Iterable[str]) -> None:
    """Delete blobs that nothing names any more. One that cannot be deleted now is an orphan, found later by its age."""
    for name in names:
        try:
            if _blobs is not None:
                _blobs.delete(check_name(name))
        except Exception as error:  # a user's store may raise anything
            logger.warning("blob %s was not deleted: %s", name, error)


def size_limit(limit: int = LIMIT) -> int:
    """How large a value may be that is going to be offloaded: `limit`, unless there is a blob store to take it."""
    return limit if _blobs is None else max(limit, BLOB_LIMIT)


def offload(payload: str, name: str, threshold: int = OFFLOAD_ABOVE) -> str:
    """The payload itself, or, if it is larger than `threshold` and there is a blob store, a reference to it under `name` and its digest.

    To be called before the payload is checked against the limit of the store and written: the blob is there before anything names it.
    """
    if _blobs is None or len(payload) <= threshold // 4 or payload.startswith(f"{_BLOB}:"):
        return payload
    data = payload.encode()
    if len(data) <= threshold:
        return payload
    return f"{_BLOB}:{len(data)}:{keep(_blobs, name, data)}"


def blob_names(payload: str) -> tuple[str, ...]:
    """The names of the blobs that must live as long as this payload."""
    return (_reference(payload)[1],) if payload.startswith(f"{_BLOB}:") else ()


def _reference(payload: str) -> tuple[int, str]:
    size, _, name = payload.removeprefix(f"{_BLOB}:").partition(":")
    try:
        return int(size), check_name(name)
    except (ValueError, BadInput):
        raise CorruptPayload(prefix=_BLOB, problem="it is no reference of the form b1:<bytes>:<namespace>/<run_id>/<what>") from None


def _fetched(payload: str) -> str:
    """The payload that a reference stands for, and nothing else."""
    size, name = _reference(payload)
    if _blobs is None:
        raise NoBlobStore(name=name)
    inner = fetch(_blobs, name, size).decode()
    if inner.startswith(f"{_BLOB}:"):
        raise CorruptPayload(prefix=_BLOB, problem=f"blob {name} holds another reference")
    return inner


def canonical(value: Any) -> str:
    """JSON with one spelling per value (sorted keys, no blanks), for digests."""
    plain = to_jsonable_python(value, by_alias=False, round_trip=True)
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def fingerprint(payload: str, *more: str) -> str:
    """The same for equal values, in whatever order their fields stand and however a codec has spelled them; `more` belongs to the value."""
    text = "\0".join((canonical(decode(payload)), *more))
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def plain(payload: str) -> str:
    """The payload without a user's codec: for what code declares. It stands in a graph, whose hash must be the same in every process."""
    return f"{_PLAIN}:{unpack(payload)}"


def split_list(payload: str) -> list[str]:
    """The payloads of the members of a payload that holds a list."""
    members = decode(payload)
    if not isinstance(members, list):
        raise CorruptPayload(prefix=payload.partition(":")[0], problem=f"a list was expected, found {type(members).__name__}")
    return [pack(to_json(member).decode()) for member in members]


def join_list(payloads: Iterable[str | None]) -> str:
    """One payload that holds the list of all given ones; None (a skipped item) becomes null."""
    return pack("[" + ",".join("null" if payload is None else unpack(payload) for payload in payloads) + "]")


def check_json(text: str, value: Any, *, limit: int, what: str) -> str:
    """Return the JSON `text` of `value`, or refuse what must not be stored. Each costly look is taken only if a cheap one raised doubt."""
    size = len(text) if text.isascii() else len(text.encode())
    if size > limit:
        raise ValueTooLarge(what=what, size=size, limit=limit)
    if text.count("[") + text.count("{") > MAX_DEPTH and (depth := _depth(text)) > MAX_DEPTH:
        raise ValueTooLarge(what=what, size=depth, limit=MAX_DEPTH, unit="levels of nesting")
    if "\\u0000" in text and (path := _find(from_json(text), _has_nul)) is not None:
        raise BadInput(what=what, field=path, problem="it holds a NUL character")
    if '"**********"' in text and (path := _find(value, _is_secret)) is not None:
        raise BadInput(what=what, field=path, problem="it is a secret and would be stored masked; pass a name by which the step finds it")
    # A model writes NaN as null, anything else as NaN: only the value itself can tell.
    if ("null" in text or "NaN" in text or "Infinity" in text) and (path := _find(value, _is_not_finite)) is not None:
        raise BadInput(what=what, field=path, problem="it is NaN or infinite, which JSON cannot carry")
    return text


def check_controls(text: str, what: str) -> None:
    """Refuse JSON whose texts or keys hold control characters other than tab and line breaks: they come from no form, but garble logs."""
    if _MAYBE_CONTROL.search(text) and (path := _find(from_json(text), _has_control)) is not None:
        raise BadInput(what=what, field=path, problem="it holds a control character; only tab, newline and carriage return are taken")


def check_text(value: Any, what: str, max_len: int) -> str:
    """An id, key, name or tag: text of 1 to `max_len` printable characters."""
    if not isinstance(value, str):
        raise BadInput(what=what, field=what, problem=f"text was expected, found {type(value).__name__}")
    if not value or len(value) > max_len:
        raise BadInput(what=what, field=what, problem=f"it has {len(value)} characters, allowed are 1 to {max_len}")
    if found := _CONTROL.search(value):
        raise BadInput(what=what, field=what, problem=f"it holds the control character {found.group()!r}")
    return value


def check_session(value: Any) -> str:
    """The name of a session. `.` and `..` are none: no URL can name them, because whatever a request passes takes them for directions."""
    name = check_text(value, "session", LONGEST_SESSION)
    if name in (".", ".."):
        raise BadInput(what="session", field="session", problem=f"{name!r} is no name; choose another")
    return name


def serialization_problem(error: PydanticSerializationError) -> str:
    """Why a value cannot be written as JSON, in words."""
    text = str(error)
    if "depth exceeded" in text or "Circular reference" in text:
        return f"it is nested deeper than {MAX_DEPTH} levels or contains itself"
    return text.removeprefix("Error serializing to JSON: ")


def _depth(text: str) -> int:
    deepest = depth = 0
    for sign in _STRINGS.sub("", text):
        if sign in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif sign in "]}":
            depth -= 1
    return deepest


def _has_nul(value: Any) -> bool:
    return isinstance(value, str) and "\0" in value


def _has_control(value: Any) -> bool:
    return isinstance(value, str) and _UNPRINTABLE.search(value) is not None


def _is_secret(value: Any) -> bool:
    return isinstance(value, (SecretStr, SecretBytes))


def _is_not_finite(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _find(value: Any, wrong: Callable[[Any], bool]) -> str | None:
    """Where in a value something is `wrong`, as `items.3.price`; None if nowhere. Depth was checked before, so recursion is bounded."""
    path = _path(value, wrong)
    return None if path is None else ".".join(path) or "value"


def _path(value: Any, wrong: Callable[[Any], bool]) -> tuple[str, ...] | None:
    if wrong(value):
        return ()
    for name, inner in _members(value):
        if wrong(name):
            return (f"key {name!r}",)
        if (path := _path(inner, wrong)) is not None:
            return (str(name), *path)
    return None


def _members(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, BaseModel):
        yield from value
    elif is_dataclass(value) and not isinstance(value, type):
        yield from ((found.name, getattr(value, found.name, None)) for found in fields(value))
    elif isinstance(value, Mapping):
        yield from value.items()
    elif isinstance(value, (list, tuple, set, frozenset, deque)):
        yield from enumerate(value)
