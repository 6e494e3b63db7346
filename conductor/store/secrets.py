"""A secret of the store, by which its processes know what one of them has signed. It dies with the store, and so does what it signed."""

from __future__ import annotations

import secrets

from conductor.store.door import Door

__all__ = ["store_secret"]


def store_secret(door: Door) -> bytes:
    """Made by whoever asks first; of two that ask at once, HSETNX lets one make it."""
    key = door.keys.head(0)
    known = door._read("HGET", key, "cs")
    if known is None:
        door._command("register", [("HSETNX", key, "cs", secrets.token_hex(16))])
        known = door._read("HGET", key, "cs")
    return str(known).encode()
