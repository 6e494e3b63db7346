"""Where a list ended, as a text that only this store's processes can make.

It says a place in the order of lists (created, id), and is signed together with what was searched for and by whom: one that was altered,
made up, or taken from another store or another search is refused. Times are not part of the search here: `since=2h` is another moment at
each page.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from conductor.errors import BadInput
from conductor.store.secrets import store_secret

if TYPE_CHECKING:
    from conductor.wiring import Engine

__all__ = ["read_cursor", "signed"]

Search = Mapping[str, Any]  # what was searched for, by name

_TIMES = ("since", "until", "idle_duration_gt", "older_than_ms")
_MAC = 16
_LONGEST = 400


def signed(engine: Engine, search: Search, within: frozenset[str] | None, place: str) -> str:
    """The cursor of a place; empty where the list has ended."""
    if not place:
        return ""
    return base64.urlsafe_b64encode(_mac(engine, search, within, place) + place.encode()).decode()


def read_cursor(engine: Engine, search: Search, within: frozenset[str] | None, cursor: str) -> str:
    """The place of a cursor of this search; empty for none."""
    if not cursor:
        return ""
    try:
        raw = base64.b64decode(cursor.encode("ascii"), altchars=b"-_", validate=True) if len(cursor) <= _LONGEST else b""
        mac, place = raw[:_MAC], raw[_MAC:].decode()
    except ValueError:  # also what is not ASCII
        mac, place = b"", ""
    right = bool(place) and hmac.compare_digest(mac, _mac(engine, search, within, place))
    if not right or cursor != base64.urlsafe_b64encode(mac + place.encode()).decode():
        problem = "it is not one that a list of this store gave for these filters; begin again without a cursor"
        raise BadInput(what="list", field="cursor", problem=problem)
    return place


def _mac(engine: Engine, search: Search, within: frozenset[str] | None, place: str) -> bytes:
    lasting = {name: value for name, value in search.items() if name not in _TIMES}
    text = json.dumps([engine.store.namespace, lasting, None if within is None else sorted(within), place])
    return hmac.new(store_secret(engine.store), text.encode(), hashlib.sha256).digest()[:_MAC]
