"""Every command by both doors, on a real service, worker and store: to the store itself, and over HTTP from a process that knows nothing but
an address and a token. What is printed is the same, up to times, ids and who acted."""

from __future__ import annotations

import getpass
import json
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from conductor.cli import exits, group
from tests.integration.shop import DIRECT
from tests.support.commanding import Commander, Said
from tests.support.processes import Processes
from tests.support.server import BROKER_DB, STATE_DB, ValkeyServer, free_port
from tests.support.waiting import eventually

APP = "tests.acceptance.doors_app"
SECRET = "cdr_doors-and-walls-0123456789abcdef"
ADA = '{"name": "Ada"}'

# A scene is played whole by one door, then whole by the other, each with subjects of its own.
SCENES: dict[str, list[str]] = {
    "start": [
        f"start greet '{ADA}' --wait", f"start greet '{ADA}' --wait --json", f"start greet '{ADA}' --key {{key}}", f"start greet '{ADA}' --key {{key}} --json",
        f"start greet '{ADA}' --key {{key}}", "start greet '{\"name\": \"Bob\"}' --key {key}", "start greet '{\"name\": 7}'", "start gret", "start greet '{bad'",
        f"start greet '{ADA}' --countdown 1h --tag {{key}} --session ann --priority 3 --deadline 2h", "runs --tag {key}", "runs --tag {key} --json", "start greet",
        f"start broken '{ADA}' --wait", f"start broken '{ADA}' --wait --json", f"start many '{ADA}' --wait", "start asking --wait --timeout 0.5",
        f"start greet '{ADA}' --priority 12", f"start greet '{ADA}' --session '' --json", f"start greet '{ADA}' --countdown 0 --expires 0",
    ],
    "look": [
        "show {done}", "show {done} --json", "show {done} --values", "show {done} --values --json", "show {failed}", "show {failed} --json", "show {waiting}",
        "why {done}", "why {failed}", "why {failed} --json", "why {waiting} --json", "events {done}", "events {done} --json", "events {failed} --after 2",
        "events {failed} -f", "watch {done}", "watch {failed}", "watch {failed} --json", "watch {waiting} --timeout 0.5", "show {done:12}", "show zz", "show ffffffff",
        "show 'a/b'", "show ''", "show ..", "why ''", "events ffffffff",
    ],
    "list": [
        "runs --limit 3", "runs --limit 3 --json", "runs --state failed --state completed --limit 2", "runs --workflow broken --json --limit 2", "runs --since 1h --limit 2",
        "runs --until 1h", "runs --idle --limit 2 --json", "runs --waiting-for word --limit 1", "runs --error-kind ValueError --limit 1", "runs --error-kind vlaue",
        "runs --cursor nonsense", "runs --lane desk", "runs --archived", "runs --state odd", "runs --version xyz", "runs --limit 2000 --session nobody",
    ],
    "signal": [
        "signal {waiting} word '{\"text\": \"go\"}' --id one", "signal {waiting} word '{\"text\": \"go\"}' --id one", "signal {waiting} wrod 1",
        "signal {fresh} word '{\"text\": 1}'", "signal {fresh} word '{\"text\": \"x\"}' --json --id two", "signal asking word '{\"text\": \"k\"}' --key {keyed} --id three",
        "signal asking word '{\"text\": \"k\"}' --key nobodys", "signal {done} word '{\"text\": \"x\"}'",
    ],
    "advance": [
        "advance {asked} draft '{\"text\": \"done\"}'", "watch {asked}", "advance {asked} draft '{\"text\": \"done\"}' --json", "advance {asked} draft '{\"text\": \"other\"}'",
        "advance {asked} darft 1", "advance asking draft '{\"text\": \"k\"}' --key {askedkey}",
    ],
    "cancel": [
        "cancel {waiting} --reason 'a mistake'", "cancel {waiting}", "cancel {waiting} --json", "cancel {done}", "cancel {done} --json", "why {waiting}",
        "show {waiting}", "cancel {fresh} --compensate --json", "cancel ffffffff --json",
    ],
    "retry": ["retry {done}", "retry {failed} --wait", "retry {failed} --json", "retry {waiting} --json"],
    "fork": [
        "fork {done} --from shout --set name='\"Eve\"' --wait", "fork {done} --from hello --set name=Eve --set age=null --wait --json", "fork {done} --from nothing", "fork {done}",
        "fork {failed} --from stand --set nmae=1",
    ],
    "pause": [
        "pause {waiting}", "pause {waiting}", "pause {waiting} --json", "why {waiting}", "resume {waiting}", "resume {waiting} --json", "resume {waiting}", "pause {done}",
        "resume {done} --json", "pause", "pause {done} --all",
    ],
    "hold": [
        "pause --workflow greet --reason night", "pause --workflow greet --reason other", "queues --json", "resume --workflow greet", "resume --workflow greet --json",
        "pause --queue gpu --json", "resume --queue gpu", "pause --capability bill", "resume --capability bill", "pause --workflow gret", "resume --workflow gret", "queues",
        "pause --workflow 'a b'", "pause --all --reason storm", "pause --all --json", "start greet '{\"name\": \"Ada\"}'", "queues", "resume --all", "resume --all --json",
    ],
    "many": [
        "retry --where 'workflow=broken status=failed tag={tag}'", "retry --where 'workflow=broken status=failed tag={tag}' --json",
        "pause --where 'tag={tag}' --json", "retry --where 'workflow=broken status=failed tag={tag}' --yes", "cancel --where 'tag={tag} status=waiting_signal' --yes --json",
        "cancel --where 'tag=nobody{tag}' --yes", "cancel --where 'tag=nobody{tag}' --yes --json", "resume --where 'tag=nobody{tag} since=2h'", "retry --where statsu=failed",
        "retry --where status=completed", "retry --where ''", "retry {done} --where status=failed", "retry", "cancel --where since=soon",
    ],
    "resolve": [
        "why {doubt}", "ops why {doubt}:pay", "why {doubt2}", "resolve {doubt} pay",
        "pause --queue celery", "resolve {doubt} pay --landed 41", "resolve {doubt2} pay --landed 41 --json", "resume --queue celery",  # or a worker may be quicker
        "watch {doubt}", "show {doubt} --values --json", "resolve {doubt2} pay --absent", "resolve {doubt2} nothing --absent",
    ],
    "call": [
        "call invoice '{\"number\": 7}'", "call invoice '{\"number\": 7}' --json --key {key}", "call invoice '{\"number\": 7}' --json --key {key}",
        "call invoice '{\"number\": 8}' --key {key} --json", "call invioce", "call invoice '{\"number\": \"7\"}'", "call invoice '{number'", "call erase --session {key}",
        "call sulk --session {key} --json", "pause --queue celery", "call invoice '{\"number\": 9}' --timeout 0 --json", "resume --queue celery", "submit invoice '{\"number\": 1}'", "submit invoice '{\"number\": 1}' --json --key {key}s",
        "submit nothing",
    ],
    "ops": [
        "ops show {op}", "ops --limit 1", "ops list --limit 1 --json", "ops list --state queued_retry --limit 1", "ops list --capability invoice --limit 1 --json",
        "ops list --older-than 1h", "ops status", "ops status --json", "ops show {op} --values", "ops show {op} --json", "ops show {op:13} --json --values", "ops why {op}", "ops why {op} --json",
        "ops show {done}:hello", "ops show {done}", "ops show zz", "ops show ffffffff-ffff", "ops retry {op}", "ops cancel {op}", "ops why {sulk} --json", "ops retry {sulk} --health-check --json",
        "ops cancel {sulk} --reason enough", "ops cancel {sulk} --json", "ops show {sulk}", "ops cancel {done}:hello", "ops nonsense", "ops list --state odd",
    ],
    "capabilities": ["capabilities", "capabilities --json", "capabilities invoice", "capabilities invoice --json", "capabilities write", "capabilities unheard"],
    "graph": ["graph greet", "graph greet --json", "graph many --mermaid", "graph gret", "graph gret --json"],
    "schedules": [
        "schedules", "schedules --json", "schedules list nightly", "schedules list nightly --json", "schedules pause nightly --reason holidays", "schedules pause nightly --json", "schedules",
        "schedules resume nightly", "schedules resume nightly --json", "schedules pause nothing", "schedules drop nothing --json", "schedules drop {schedule}", "schedules list nothing",
    ],
    "consent": [
        "grant {session}", "grant {session} erase", "grant {session} erase --for 2h --json", "grant {session}", "grant {session} --json", "grant {session} invoice", "grant {session} erasse",
        "call erase --session {session}", "revoke {session} erase", "revoke {session} --json", "grant {session}", "grant --run {waiting}", "revoke --run {waiting} --json",
        "grant --run {done}", "grant", "revoke",
    ],
    "inbox": [
        "inbox {told}", "inbox {told} --json", "inbox nobody", "inbox nobody --follow --timeout 0.3", "inbox {told} --follow --timeout 0.3 --json", "inbox {told} --ack nothing",
        "inbox {told} --limit 1 --ack-all --json", "inbox {told} --json",
    ],
    "gates": [
        "lanes", "lanes --json", "lanes desk", "lanes desk --json", "lanes nobody", "limits", "limits --json", "limits ai --rate 30/m --concurrency 4", "limits ai --json",
        "limits ai --as-declared", "limits ai --rate soon", "limits ai --rate none", "limits nobody --rate 1/m", "limits nobody", "limits --rate 1/m", "limits ai --concurrency many",
    ],
}


class Stage:
    """A store, a worker and a service; both doors to it; and subjects for their scenes."""

    def __init__(self, server: ValkeyServer, namespace: str, directory: Path, direct: Commander, remote: Commander) -> None:
        self.server, self.namespace, self.directory, self.direct, self.remote = server, namespace, directory, direct, remote
        self._subjects: dict[str, str] = {}

    def play(self, lines: list[str], door: Commander) -> Iterator[tuple[str, Said]]:
        self._subjects = {}
        (self.directory / "mended").unlink(missing_ok=True)
        for line in lines:
            filled = re.sub(r"\{([a-z0-9]+)(?::(\d+))?\}", lambda found: self._subject(found[1])[: int(found[2] or 99)], line)
            if line.startswith("retry {failed}"):
                (self.directory / "mended").touch()
            yield line, door(*shlex.split(filled))

    def _subject(self, name: str) -> str:
        if name not in self._subjects:
            self._subjects[name] = self._made(name)
        return self._subjects[name]

    def _made(self, name: str) -> str:
        makers: dict[str, Callable[[], str]] = {
            "done": lambda: self._run("greet", ADA, "completed"), "failed": lambda: self._run("broken", ADA, "failed"),
            "waiting": lambda: self._run("asking", "null", "waiting_signal"), "fresh": lambda: self._run("asking", "null", "waiting_signal"),
            "asked": self._asked, "doubt": lambda: self._run("doubtful", "null", "paused"), "doubt2": lambda: self._run("doubtful", "null", "paused"),
            "op": lambda: self._op("invoice", '{"number": 5}', "completed"), "sulk": lambda: self._op("sulk", "{}", "queued"),
            "schedule": self._schedule, "told": self._told, "tag": self._tagged, "keyed": lambda: self._keyed(""), "askedkey": lambda: self._keyed("asked"),
        }
        return makers[name]() if name in makers else f"{name}-{len(self._subjects)}-{id(self._subjects)}"

    def told(self, *arguments: str) -> Any:
        said = self.direct(*arguments, "--json")
        assert said.code in (exits.OK, exits.QUEUED, exits.FAILED), said
        return json.loads(said.out)

    def _run(self, workflow: str, value: str, state: str, *options: str) -> str:
        run_id = str(self.told("start", workflow, value, *options)["run_id"])
        eventually(lambda: self.told("show", run_id)["state"] == state, 30, every=0.1, what=f"{workflow} is {state}")
        return run_id

    def _asked(self) -> str:
        run_id = self._run("asking", "null", "waiting_signal")
        self.told("signal", run_id, "word", '{"text": "x"}')
        eventually(lambda: self.told("show", run_id)["active_waiters"][:1] and self.told("show", run_id)["active_waiters"][0]["kind"] == "agent", 30, every=0.1)
        return run_id

    def _keyed(self, kind: str) -> str:
        key = f"key{kind}{id(self._subjects)}"
        run_id = self._run("asking", "null", "waiting_signal", "--key", key)
        if kind:
            self.told("signal", run_id, "word", '{"text": "x"}')
            eventually(lambda: "agent" in str(self.told("show", run_id)["active_waiters"]), 30, every=0.1)
        return key

    def _op(self, capability: str, params: str, state: str, *options: str) -> str:
        op = str(self.told("call", capability, params, *options)["operation_id"])
        eventually(lambda: self.told("ops", "show", op)["state"] == state, 30, every=0.1)
        return op

    def _tagged(self) -> str:
        tag = f"tag{id(self._subjects)}"
        for _ in range(3):
            self._run("broken", ADA, "failed", "--tag", tag)
        self._run("asking", "null", "waiting_signal", "--tag", tag)
        return tag

    def _schedule(self) -> str:
        name = f"sched{id(self._subjects) % 997}"
        self.maker.schedule(name, "invoice", {"number": 1}, when=7200)
        return name

    def _told(self) -> str:
        session = f"ses{id(self._subjects)}"
        for number in (1, 2):
            self.told("submit", "invoice", json.dumps({"number": number}), "--session", session)
            eventually(lambda: len(self.told("inbox", session)["messages"]) == number, 30, every=0.1, what="the message is there")  # noqa: B023
        return session

    @property
    def maker(self) -> Any:
        """A conductor of the same store that knows the capability's name."""
        import importlib

        return importlib.import_module(APP).conductor


@pytest.fixture
def stage(own_valkey: ValkeyServer, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    env = {
        "CONDUCTOR_REDIS_URL": own_valkey.url(STATE_DB), "CONDUCTOR_NAMESPACE": namespace, "TEST_BROKER_URL": own_valkey.url(BROKER_DB),
        "TEST_MENDED": str(tmp_path / "mended"),
    }
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    processes, port = Processes(tmp_path, env, app=APP), free_port()
    (nowhere := tmp_path / "nowhere").mkdir()
    with (
        Commander(tmp_path, {**env, "CELERY_APP": APP, "SECRET": SECRET}) as direct,
        Commander(nowhere, {"CONDUCTOR_URL": f"http://127.0.0.1:{port}", "CONDUCTOR_TOKEN": SECRET}) as remote,
    ):
        said = direct("tokens", "add", "doors", "--scope", "read", "--scope", "write", "--scope", "admin", "--secret-env", "SECRET")
        assert said.code == 0, said
        processes.worker(concurrency=2)
        processes.python("serve", ["-m", "celery", "-A", APP, "conductor", "serve", "--port", str(port)], ready=f":{port}", wait=True)
        one = Stage(own_valkey, namespace, tmp_path, direct, remote)
        one.maker.schedule("nightly", "invoice", {"number": 1}, when=3600)
        try:
            yield one
        finally:
            processes.close()


@pytest.mark.spec("CLI-3", "CLI-4", "CLI-5")
@pytest.mark.timeout(900)
def test_every_command_says_the_same_by_both_doors(stage: Stage) -> None:
    wrong = []
    for name, lines in SCENES.items():
        for (line, here), (_, there) in zip(list(stage.play(lines, stage.direct)), stage.play(lines, stage.remote), strict=True):
            assert "unexpected" not in there.err, there
            if comparable(line, here) != comparable(line, there):
                wrong.append(f"{name}: conductor {line}\n  directly {comparable(line, here)}\n  over HTTP {comparable(line, there)}")
    assert not wrong, f"{len(wrong)} differ\n" + "\n".join(wrong)
    assert stage.remote.loaded == [], "a command over HTTP needs neither the app nor what only the store and the service need"


def test_every_command_is_in_a_scene_or_works_on_the_store_itself() -> None:
    spoken = {shlex.split(line)[0] for lines in SCENES.values() for line in lines}
    commands = set(group.list_commands(click.Context(group)))
    assert commands == spoken | DIRECT
    for noun in ("ops", "schedules"):
        verbs = group.get_command(click.Context(group), noun).commands  # type: ignore[union-attr]
        assert set(verbs) <= {shlex.split(line)[1] for lines in SCENES.values() for line in lines if line.startswith(noun) and " " in line}


def comparable(line: str, said: Said) -> tuple[int, Any, Any]:
    """What must be equal: exit code, output and what was noted beside it."""
    if "--json" not in line:
        return said.code, scrubbed(said.out), scrubbed(said.err)
    try:
        out: Any = walked(json.loads(said.out)) if said.out else None
    except ValueError:  # one object a line
        out = [walked(json.loads(one)) for one in said.out.splitlines()]
    err = [scrubbed(one) for one in said.err.splitlines() if not one.startswith("{")]
    told = [walked(json.loads(one)) for one in said.err.splitlines() if one.startswith("{")]
    return said.code, out, (err, told)


_TIMES = re.compile(
    r"(_at|_ms|_since|_seconds)$|^(at|now|due|since|until|fence|cursor|retry_at|lease_until|grant_id|holder|worker|deadline|progress_at|kept_until|epoch)$")
_WHO = re.compile(r"^(actor|by)$")


def walked(value: Any, name: str = "") -> Any:
    """JSON without what depends on the moment, on chance, or on who acted. A traceback is told directly only."""
    if isinstance(value, dict):
        return {key: walked(one, key) for key, one in value.items() if key != "traceback"}
    if isinstance(value, list):
        return [walked(one, name) for one in value]
    if _TIMES.search(name) and value is not None and name != "lease_seconds":
        return "T"
    if _WHO.search(name) and value:
        return "WHO"
    return scrubbed(value) if isinstance(value, str) else value


def scrubbed(text: str) -> str:
    text = re.sub(r"[0-9a-f]{8}-[0-9a-f]{4}(?:-[0-9a-f]{4}(?:-[0-9a-f]{4}-[0-9a-f]{12})?)?…?", "ID", text)
    text = re.sub(r"(?:key )?auto-[0-9a-f]{32}", "", text)
    text = re.sub(r"\b[0-9a-f]{32}\b", "", text)
    text = re.sub(r"(?:key|tag|ses|sched|session)[a-z]*-?\d*-?\d{2,}s?", "NAME", text)
    text = re.sub(r"(?:\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d(?:\.\d+)? UTC", "TIME", text)
    text = re.sub(r"\b\d+(?:\.\d+)? ?(?:ms|s|min|m|h|d)\b", "SPAN", text)
    text = re.sub(r"\b[\w-]+@[\w.-]+", "WORKER", text)
    text = re.sub(rf"\b(?:by |granted )?(?:{re.escape(getpass.getuser())}|doors)\b", "WHO", text)
    text = re.sub(r"--cursor \S+", "--cursor C", text)
    return " ".join(text.split())
