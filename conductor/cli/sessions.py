"""Commands for sessions, that is for whoever asked: inbox, grant, revoke."""

from __future__ import annotations

import time
from collections.abc import Iterator

import click
from rich.markup import escape

from conductor import codec
from conductor.cli import exits
from conductor.cli.doors import Told
from conductor.cli.finding import Here
from conductor.cli.render import SPAN, command, line_of_json, moment, note, print_json, print_text, span, stdout, table
from conductor.errors import UnknownMessage

__all__ = ["grant", "inbox", "revoke"]

_PAGE = 1000
_SLICE = 30.0  # seconds of one wait; following goes on after it
_TEXT = 160  # characters of a message's body in a table

session_argument = click.argument("session")


# Inbox.


@command("inbox", "Print and acknowledge the messages of a session.")
@session_argument
@click.option("--ack", "acks", multiple=True, metavar="ID", help="Acknowledge the message whose id begins so; may be repeated.")
@click.option("--ack-all", is_flag=True, help="Acknowledge every message after it was printed.")
@click.option("-f", "--follow", is_flag=True, help="Go on and print messages as they come; with --json one object a line.")
@click.option("--timeout", type=SPAN, help="With --follow: stop after this time; exit code 5 if no message came.")
@click.option("--limit", type=click.IntRange(1, _PAGE), default=100, show_default=True, help="How many at most, without --follow.")
def inbox(
    here: Here, session: str, acks: tuple[str, ...], ack_all: bool, follow: bool, timeout: float | None, limit: int,
) -> None:
    """Print the messages of a session that nobody has acknowledged, oldest first. Each stays until it is acknowledged."""
    if acks and (ack_all or follow):
        raise click.UsageError("--ack names messages; leave out --ack-all and --follow")
    if acks:
        _acknowledge(here, session, acks)
    elif follow:
        _follow(here, session, ack_all, timeout)
    else:
        told = here.door.inbox(session, limit=limit)
        _print(here, told)
        for message in told["messages"] if ack_all else ():
            here.door.acknowledge(session, message["id"])
        if len(told["messages"]) == limit and not here.json:
            note(f"there may be more: --limit {min(_PAGE, 2 * limit)}, or --ack-all and look again")


def _print(here: Here, told: Told) -> None:
    found: list[Told] = told["messages"]
    if here.json:
        print_json({"messages": found})
    elif found:
        rows = (
            (escape(one["id"]), escape(str(one["body"].get("capability", ""))), span(told["now"] - one["at"]), escape(_told(one)))
            for one in found
        )
        stdout().print(table(("MESSAGE", "CAPABILITY", "AGE", ""), rows))
    else:
        note("no messages")


def _told(message: Told) -> str:
    """What matters of its body on one line: the result of a success, the error of a failure."""
    body = message["body"]
    text = codec.canonical(body["result"]) if "result" in body else str(body.get("error") or body.get("reason") or "")
    return text if len(text) <= _TEXT else f"{text[:_TEXT]}…"


def _acknowledge(here: Here, session: str, given: tuple[str, ...]) -> None:
    done = [_one(here, session, text) for text in given]
    if here.json:
        print_json({"session": session, "acknowledged": done})
    else:
        for message_id in done:
            print_text(f"message {message_id} is acknowledged")


def _one(here: Here, session: str, text: str) -> str:
    """Acknowledge by whole id, else by the only one that begins so."""
    if here.door.acknowledge(session, text):
        return text
    found = [message["id"] for page in _pages(here, session) for message in page if message["id"].startswith(text)]
    if len(found) > 1:
        problem = f"{text!r} is the beginning of several messages ({found[0]}, {found[1]}, …); give more of it"
        raise click.BadParameter(problem, param_hint="--ack")
    if not found:
        raise UnknownMessage(session=session, message_id=text)
    here.door.acknowledge(session, found[0])
    return str(found[0])


def _pages(here: Here, session: str) -> Iterator[list[Told]]:
    after = ""
    while page := here.door.inbox(session, after=after, limit=_PAGE)["messages"]:
        yield page
        after = page[-1]["cursor"]


def _follow(here: Here, session: str, ack_all: bool, timeout: float | None) -> None:
    """A message is acknowledged only after it was printed: whoever is interrupted between the two sees it again."""
    after, seen = "", 0
    until = None if timeout is None else time.monotonic() + timeout
    while until is None or time.monotonic() < until:
        left = _SLICE if until is None else max(0.0, min(_SLICE, until - time.monotonic()))
        for message in here.door.messages(session, after, left):
            text = f"{moment(message['at'])}  {message['id']}  {_told(message)}".rstrip()
            click.echo(line_of_json(message) if here.json else text)
            if ack_all:
                here.door.acknowledge(session, message["id"])
            after, seen = message["cursor"], seen + 1
    if not seen:
        note(f"no message came for session {session} within {span((timeout or 0) * 1000)}")
        raise click.exceptions.Exit(exits.TIMED_OUT)


# Consent.


@command("grant", "Let a capability run for a session, or in a run.")
@click.argument("session", required=False, metavar="[SESSION]")
@click.argument("capability", required=False, metavar="[CAPABILITY]")
@click.option("--once", is_flag=True, help="For one operation and its repeats (the default).")
@click.option("--for", "lasting", type=SPAN, help="For this time: 30m, 2h, 7d.")
@click.option("--always", is_flag=True, help="Until it is revoked.")
@click.option("--run", help="For everything in this run, as long as it has not ended; no SESSION and CAPABILITY then.")
def grant(
    here: Here, session: str | None, capability: str | None, once: bool, lasting: float | None, always: bool, run: str | None,
) -> None:
    """Let a capability that needs consent run for a session. With SESSION alone: list what it has granted."""
    chosen = [once, lasting is not None, always]
    if run is not None:
        _run_only(session, any(chosen))
        _blanket(here, run, on=True)
    elif session is None or (capability is None and any(chosen)):
        raise click.UsageError("name SESSION and CAPABILITY, or --run RUN")
    elif capability is None:
        _granted(here, session)
    elif sum(chosen) > 1:
        raise click.UsageError("name one of: --once, --for, --always")
    else:
        _grant(here, session, capability, "always" if always else "once" if lasting is None else "until", lasting)


def _grant(here: Here, session: str, capability: str, mode: str, lasting: float | None) -> None:
    told = here.door.grant(session, capability, mode, lasting)
    if here.json:
        print_json(told)
        return
    how = {"once": "for one operation", "always": "until it is revoked"}.get(mode, f"for {span((lasting or 0) * 1000)}")
    print_text(f"session {session} lets {told['capability']} run {how}")
    if not told["needed"]:
        note(f"capability {told['capability']} asks for no consent, so this changes nothing")


def _granted(here: Here, session: str) -> None:
    told = here.door.grants(session)
    if here.json:
        print_json(told)
    elif found := told["grants"]:
        rows = ((escape(one["capability"]), _mode(one), moment(one["granted_at"]), escape(one["by"])) for one in found)
        stdout().print(table(("CAPABILITY", "GRANT", "SINCE", "BY"), rows))
    else:
        note(f"session {session} has granted nothing")


def _mode(one: Told) -> str:
    return f"until {moment(one['until'])}" if one["mode"] == "until" else str(one["mode"])


@command("revoke", "Take back what a session has granted.")
@click.argument("session", required=False, metavar="[SESSION]")
@click.argument("capability", required=False, metavar="[CAPABILITY]")
@click.option("--run", help="What `grant --run` gave; no SESSION and CAPABILITY then.")
def revoke(here: Here, session: str | None, capability: str | None, run: str | None) -> None:
    """Take back what a session has granted: of one capability, or all of it. It counts from the next attempt on."""
    if run is not None:
        _run_only(session, False)
        _blanket(here, run, on=False)
        return
    if session is None:
        raise click.UsageError("name SESSION, or --run RUN")
    told = here.door.revoke(session, capability or "")
    if here.json:
        print_json(told)
    else:
        print_text(f"session {session} has no grant {f'for {capability}' if capability else 'for anything'} any more")


def _run_only(session: str | None, chosen: bool) -> None:
    if session is not None or chosen:
        raise click.UsageError("--run stands alone: the consent of a run covers everything in it and ends with it")


def _blanket(here: Here, run: str, *, on: bool) -> None:
    told = here.door.consent(here.run_id(run), on=on)
    says = "has consent for everything in it until it ends" if on else "has no consent of its own any more"
    print_json(told) if here.json else print_text(f"run {told['run_id']} {says}")
