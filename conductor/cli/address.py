"""Where a service is, as `--url` or `CONDUCTOR_URL` says it. Who calls is said by `CONDUCTOR_TOKEN`, which no list of processes shows."""

from __future__ import annotations

import os
import re
from urllib.parse import urlsplit

import click

__all__ = ["TOKEN", "URL", "checked_url", "read_token"]

URL, TOKEN = "CONDUCTOR_URL", "CONDUCTOR_TOKEN"


def read_token() -> str:
    """The token, or nothing. What could not stand in a header is refused without being shown."""
    token = os.environ.get(TOKEN, "").strip()
    if not re.fullmatch(r"[\x21-\x7e]*", token):
        raise click.UsageError(f"the variable {TOKEN} holds what no token has: a token is one word of plain letters, digits and signs")
    return token


def checked_url(text: str) -> str:
    """The address, without what could not be one. A name and a password in it would be seen by everybody on this machine."""
    url = text.strip().rstrip("/")
    try:
        parts = urlsplit(url)
        wrong = parts.scheme not in ("http", "https") or not parts.hostname or bool(parts.query or parts.fragment)
        wrong = wrong or not 0 <= (parts.port or 0) <= 65_535 or any(sign.isspace() for sign in url)
    except ValueError:
        wrong = True
    if wrong:
        raise click.BadParameter("the address of a service was expected, such as https://conductor.example:8440", param_hint="--url")
    if parts.username is not None:
        raise click.BadParameter(f"leave out what stands before the @; a token goes into the variable {TOKEN}", param_hint="--url")
    return url
