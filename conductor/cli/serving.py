"""Commands of the HTTP service: serve, tokens."""

from __future__ import annotations

import importlib.util
import logging
import os
import re
from datetime import timedelta

import click
from rich.markup import escape

from conductor.cli.finding import Here
from conductor.cli.operating import Verbs
from conductor.cli.render import SPAN, command, moment, note, print_json, print_text, stdout, table
from conductor.errors import ServerNotInstalled, UnknownToken

__all__ = ["serve", "tokens"]

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_NEEDS = ("fastapi", "uvicorn", "httptools", "prometheus_client")


class _OneLine(logging.Formatter):
    """A record is a line: what callers sent may hold line ends and escape sequences, which must not look like records of ours."""

    def format(self, record: logging.LogRecord) -> str:
        return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), super().format(record))


@command("serve", "Serve runs, operations and events over HTTP.", direct=True)
@click.option("--host", help="The address (default: setting service_host, 127.0.0.1). One that others reach needs a token.")
@click.option("--port", type=click.IntRange(0, 65_535), help="The port (default: setting service_port); 0 takes a free one.")
@click.option("-l", "--loglevel", type=click.Choice(["debug", "info", "warning", "error"]), default="warning", show_default=True)
def serve(here: Here, host: str | None, port: int | None, loglevel: str) -> None:
    """Serve HTTP until told to stop. Any number may run. Without a token only this machine may call."""
    here.need_code()
    if missing := [name for name in _NEEDS if importlib.util.find_spec(name) is None]:
        raise ServerNotInstalled(package=missing[0])
    from conductor.service.server import serve as serve_until_told

    handler = logging.StreamHandler()
    handler.setFormatter(_OneLine("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=loglevel.upper(), handlers=[handler])
    settings = here.conductor.settings
    serve_until_told(
        here.conductor, host=host or settings.service_host, port=settings.service_port if port is None else port, announce=note)


@click.group("tokens", cls=Verbs, direct=True, short_help="Make, list and revoke tokens of the HTTP service.")
def tokens() -> None:
    """Who may call the HTTP service. The first token closes it to everybody else, this machine too."""


@tokens.verb("add", "Make a token; its text is shown once.")
@click.argument("name")
@click.option("--scope", "scopes", multiple=True, type=click.Choice(["read", "write", "admin"]), default=("read", "write"),
              show_default=True, help="What it may do; may be repeated.")
@click.option("--session", "sessions", multiple=True, help="It sees and acts on this session's runs only; may be repeated.")
@click.option("--expires", type=SPAN, help="It counts for so long, for example 90d.")
@click.option("--secret-env", metavar="VARIABLE", help="Take its text from this variable: for stacks; the same again is fine.")
def add(
    here: Here, name: str, scopes: tuple[str, ...], sessions: tuple[str, ...], expires: float | None, secret_env: str | None,
) -> None:
    """Make a token. Its text is shown once; the store keeps a hash."""
    lasts = int(timedelta(seconds=expires).total_seconds() * 1000) if expires else 0
    given = os.environ.get(secret_env, "") if secret_env else ""
    if secret_env and not given:
        raise click.BadParameter(f"the variable {secret_env} is not set", param_hint="--secret-env")
    secret, token = here.engine.store.add_token(name, scopes, sessions=sessions or None, expires_ms=lasts, secret=given)
    if given:
        print_json(token.to_json()) if here.json else note(f"token {name} of {secret_env} may {', '.join(sorted(token.scopes))}")
        return
    if here.json:
        print_json(token.to_json() | {"token": secret})
        return
    note(f"token {name} may {', '.join(sorted(token.scopes))}; it is shown this once:")
    print_text(secret)


@tokens.verb("list", "List tokens.")
def list_(here: Here) -> None:
    """List tokens: what they may do, and whether they count."""
    store = here.engine.store
    found, now = store.tokens(), store.clock()
    if here.json:
        print_json({"tokens": [token.to_json() for token in found]})
        return
    if not found:
        note("no tokens: the service answers this machine only")
        return
    rows = (
        (escape(token.name), ", ".join(sorted(token.scopes)), escape(", ".join(sorted(token.sessions or ())) or "all"),
         moment(token.created_at), moment(token.expires_at) if token.expires_at else "never",
         escape(token.problem(now).removeprefix(f"token {token.name} ")) or "valid")
        for token in found
    )
    stdout().print(table(("TOKEN", "SCOPES", "SESSIONS", "MADE", "EXPIRES", ""), rows))


@tokens.verb("revoke", "Revoke a token.")
@click.argument("name")
@click.option("--forget", is_flag=True, help="Take its record away too. Without any record the service is open to this machine again.")
def revoke(here: Here, name: str, forget: bool) -> None:
    """Revoke a token: every service refuses it within a second, and the logins made with it."""
    store = here.engine.store
    if not (store.forget_token(name) if forget else store.revoke_token(name)):
        raise UnknownToken(name=name)
    if here.json:
        print_json({"name": name, "revoked": True, "forgotten": forget})
    else:
        print_text(f"token {name} is {'forgotten' if forget else 'revoked'}")

