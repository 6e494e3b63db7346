"""The command line over HTTP: where the service is named, who calls, what is refused, and what is said while nobody answers. That each command
says the same as directly is shown by `tests/acceptance/test_both_doors.py`, and by the other tests of the command line, which go by both doors."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from conductor.cli import exits, group
from conductor.cli.doors.remote import Remote
from conductor.cli.finding import Here
from conductor.declare import registry
from tests.integration.shop import DIRECT, Shop
from tests.support.listening import listening
from tests.support.scripted_http import Answer, Hang, ScriptedHttp, error
from tests.support.server import ValkeyServer, free_port

ROOT = Path(__file__).parents[2]


@pytest.fixture
def shop(valkey: ValkeyServer, namespace: str, clean_keys: None) -> Iterator[Shop]:
    with registry.isolated():
        one = Shop(valkey.url(), namespace)
        with listening(one.conductor) as url:
            one.url = url
            yield one


@pytest.fixture
def server() -> Iterator[ScriptedHttp]:
    with ScriptedHttp() as one:
        yield one


def call(*arguments: str, **env: str) -> Result:
    return CliRunner(env=env).invoke(group, list(arguments))


# Where it is.


@pytest.mark.spec("CLI-3")
def test_the_service_is_named_in_front_behind_or_by_a_variable(shop: Shop) -> None:
    run_id = shop.start()
    for line, env in (
        (["--url", shop.url, "show", run_id, "--json"], {}), (["show", run_id, "--json", "--url", f"{shop.url}/"], {}),
        (["ops", "list", "--url", shop.url, "--json"], {}), (["show", run_id, "--json"], {"CONDUCTOR_URL": shop.url}),
        (["show", run_id, "--json"], {"CONDUCTOR_URL": shop.url, "CELERY_APP": "no_such_app"}),
        (["--url", shop.url, "show", run_id, "--json"], {"CONDUCTOR_URL": "http://127.0.0.1:1"}),
    ):
        result = call(*line, **env)
        assert result.exit_code == exits.OK, (line, result.output)
        assert json.loads(result.stdout).get("run_id", run_id) == run_id


@pytest.mark.spec("CLI-3")
def test_an_app_that_is_named_goes_before_the_variable_and_not_beside_the_option(shop: Shop) -> None:
    directly = CliRunner(env={"CONDUCTOR_URL": "http://127.0.0.1:1"}).invoke(group, ["runs"], obj=SimpleNamespace(app=shop.app))
    assert directly.exit_code == exits.OK, directly.output
    for line in (["-A", "shop", "--url", shop.url, "runs"], ["-A", "shop", "runs", "--url", shop.url]):
        refused = call(*line)
        assert (refused.exit_code, "leave out one of them" in refused.stderr) == (exits.USAGE, True), refused.output


@pytest.mark.spec("CLI-3")
def test_it_is_a_command_of_celery_itself(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Celery always has an app, also where nobody named one."""
    from celery.bin.celery import celery

    monkeypatch.setitem(celery.commands, group.name, group)
    run_id = shop.start()
    for line, env in ((["conductor", "--url", shop.url, "show", run_id], {}), (["conductor", "show", run_id], {"CONDUCTOR_URL": shop.url})):
        result = CliRunner(env=env).invoke(celery, [*line, "--json"])
        assert result.exit_code == exits.OK, result.output
        assert json.loads(result.stdout)["run_id"] == run_id
    both = CliRunner().invoke(celery, ["-A", "workers", "conductor", "--url", shop.url, "show", run_id])
    assert (both.exit_code, "leave out one of them" in both.stderr) == (exits.USAGE, True), both.output


def test_without_the_client_it_says_what_to_install(tmp_path: Path) -> None:
    program = "import sys; sys.modules['httpx2'] = None; from conductor.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, "runs"], env={**os.environ, "PYTHONPATH": str(ROOT), "CONDUCTOR_URL": "http://127.0.0.1:1"}, cwd=tmp_path,
        capture_output=True, text=True, check=False, timeout=60,
    )
    assert (done.returncode, "pip install 'celery-conductor[client]'" in done.stderr) == (exits.FAILED, True), done.stderr


@pytest.mark.spec("CLI-5")
def test_commands_that_are_suggested_can_be_pasted(shop: Shop) -> None:
    run_id = shop.start()
    assert call("--url", shop.url, "pause", run_id).exit_code == exits.OK
    told = json.loads(call("why", run_id, "--json", "--url", shop.url).stdout)
    assert told["command"] == f"conductor --url {shop.url} resume {run_id}"
    assert call(*shlex.split(told["command"])[1:]).exit_code == exits.OK
    assert json.loads(call("why", run_id, "--json", CONDUCTOR_URL=shop.url).stdout)["command"].startswith("conductor watch")
    call("--url", shop.url, "pause", "--queue", "celery")
    assert f"conductor --url {shop.url} resume --queue celery" in call("--url", shop.url, "queues").stdout


@pytest.mark.parametrize("url", ["localhost:8440", "ftp://here", "http://", "http://here:port", "http://a b", "http://here?x=1", "/v1"])
def test_what_is_no_address_is_wrong_usage(url: str) -> None:
    for line, env in ((["--url", url, "runs"], {}), (["runs", "--url", url], {}), (["runs"], {"CONDUCTOR_URL": url})):
        result = call(*line, **env)
        assert (result.exit_code, "address of a service" in result.stderr) == (exits.USAGE, True), result.output


# What works on the store itself.


def _commands() -> Iterator[list[str]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        verbs = list(found.commands) if isinstance(found, click.Group) else []
        yield from ([name, verb] for verb in verbs) if verbs else iter([[name]])


@pytest.mark.spec("CLI-3")
@pytest.mark.parametrize("line", [line for line in _commands() if line[0] in DIRECT], ids=" ".join)
def test_what_works_on_the_store_itself_says_so(line: list[str]) -> None:
    needed = ["x"] if line in (["tokens", "add"], ["tokens", "revoke"]) else []
    for arguments, env in (
        (["--url", "http://127.0.0.1:1", *line, *needed], {}), ([*line, *needed, "--url", "http://127.0.0.1:1"], {}),
        ([*line, *needed], {"CONDUCTOR_URL": "http://127.0.0.1:1"}),
    ):
        result = call(*arguments, **env)
        assert result.exit_code == exits.USAGE, (arguments, result.output)
        assert f"{' '.join(line)}` works on the store itself" in result.stderr


# Who calls.


@pytest.mark.spec("SVC-4", "CLI-3")
def test_the_token_is_taken_from_a_variable_and_shown_nowhere(shop: Shop) -> None:
    run_id = shop.start()
    secret, _ = shop.engine.store.add_token("ann", ["read"], secret="cdr_walls-have-ears-0123456789abcdef")
    result = call("runs", CONDUCTOR_URL=shop.url)
    while result.exit_code == exits.OK:  # for a second a service does not know that there is a token now
        result = call("runs", CONDUCTOR_URL=shop.url)
    assert (result.exit_code, "the variable CONDUCTOR_TOKEN, which is not set" in result.stderr) == (exits.FAILED, True), result.output
    env = {"CONDUCTOR_URL": shop.url, "CONDUCTOR_TOKEN": f"{secret}\n"}
    assert run_id in call("runs", "--json", **env).stdout
    refused = call("cancel", run_id, "--json", **env)
    assert (refused.exit_code, json.loads(refused.stderr)["error"]["code"]) == (exits.FAILED, "forbidden")
    wrong = call("runs", CONDUCTOR_URL=shop.url, CONDUCTOR_TOKEN="cdr_wrong-0123456789abcdef")
    assert (wrong.exit_code, "CONDUCTOR_TOKEN" in wrong.stderr, "cdr_" in wrong.output) == (exits.FAILED, True, False)
    for odd in ("größe", "two words", "a\nb"):
        refused = call("runs", CONDUCTOR_URL=shop.url, CONDUCTOR_TOKEN=odd)
        assert (refused.exit_code, odd in refused.output, "holds what no token has" in refused.stderr) == (exits.USAGE, False, True)
    for line in (["--token", secret, "runs"], ["runs", "--token", secret]):
        assert call(*line, CONDUCTOR_URL=shop.url).exit_code == exits.USAGE
    named = call("--url", shop.url.replace("//", f"//ann:{secret}@"), "runs")
    assert (named.exit_code, "CONDUCTOR_TOKEN" in named.stderr, secret in named.output) == (exits.USAGE, True, False)


@pytest.mark.spec("SVC-4")
def test_who_did_it_is_said_by_the_service(shop: Shop) -> None:
    run_id = shop.start()
    assert call("cancel", run_id, "--reason", "enough", CONDUCTOR_URL=shop.url).exit_code == exits.OK
    assert json.loads(call("show", run_id, "--json", CONDUCTOR_URL=shop.url).stdout)["actor"] == "local"


# Nobody answers.


@pytest.mark.spec("CLI-3", "CLI-1")
@pytest.mark.parametrize("line", ["runs", "show last", "start cli_naps", "ops", "queues", "call x", "inbox ann"])
def test_a_service_that_is_away_is_exit_code_four(line: str) -> None:
    result = call("--url", f"http://127.0.0.1:{free_port()}", *line.split())
    assert result.exit_code == exits.UNREACHABLE, result.output
    assert result.stderr.startswith("error: nobody has answered at http://127.0.0.1:")
    assert "Traceback" not in result.output
    told = json.loads(call("--url", f"http://127.0.0.1:{free_port()}", *line.split(), "--json").stderr)["error"]
    assert (told["code"], told["exit"]) == ("conductor_unreachable", exits.UNREACHABLE)


@pytest.mark.spec("CLI-3")
def test_a_service_without_its_store_is_exit_code_four(server: ScriptedHttp) -> None:
    server.on("GET", "/v1/queues", error(503, "store_unreachable", "the store at redis://x cannot be reached"))
    result = call("--url", server.url, "queues")
    assert (result.exit_code, result.stderr) == (exits.UNREACHABLE, "error: the store at redis://x cannot be reached\n")


@pytest.mark.spec("CLI-3")
def test_whoever_waits_too_long_is_told_that_the_run_goes_on(server: ScriptedHttp) -> None:
    server.on("POST", "/v1/runs", Answer({"run_id": "r", "workflow": "w", "new": True}, 201))
    server.on("GET", "/v1/runs/r/outcome", Hang())
    server.on("GET", "/v1/runs/r/events", Hang())
    result = call("--url", server.url, "start", "w", "--wait", "--timeout", "0.2", "--json")
    assert result.exit_code == exits.TIMED_OUT, result.output
    assert json.loads(result.stderr.splitlines()[-1])["error"]["code"] == "get_timeout"


@pytest.mark.spec("CLI-3")
def test_a_lost_reply_is_not_called_a_failure(server: ScriptedHttp) -> None:
    server.on("GET", "/v1/named/runs/last", Answer({"ids": ["r"]}))
    server.on("POST", "/v1/runs/r/retry", error(503, "store_unreachable"))
    result = call("--url", server.url, "retry", "last", "--json")
    assert (result.exit_code, json.loads(result.stderr)["error"]["code"]) == (exits.FAILED, "reply_lost")
    assert len(server.asked("POST", "/v1/runs/r/retry")) == 1


# What the service has less of at once.


def test_a_long_list_is_read_page_by_page(server: ScriptedHttp) -> None:
    pages = [Answer({"runs": [{"run_id": f"{page}-{n}"} for n in range(size)], "cursor": cursor, "now": 1}) for page, size, cursor in (
        (0, 1000, "a"), (1, 1000, "b"), (2, 500, "c"))]
    server.on("GET", "/v1/runs", *pages)
    told = json.loads(call("--url", server.url, "runs", "--limit", "2500", "--json", "--state", "failed", "--state", "queued").stdout)
    assert (len(told["runs"]), told["cursor"]) == (2500, "c")
    assert [one.query for one in server.seen] == [
        "status=failed%2Cqueued&limit=1000", "status=failed%2Cqueued&cursor=a&limit=1000", "status=failed%2Cqueued&cursor=b&limit=500"]
    many = call("--url", server.url, "ops", "list", "--limit", "2000")
    assert (many.exit_code, "at most 1000" in many.stderr) == (exits.USAGE, True)


def test_a_terminal_sees_the_run_as_it_moves(shop: Shop) -> None:
    run_id, away = shop.start(), list[int]()
    looks = Remote(Here(), shop.url, "").looks(run_id, timeout=20, away=lambda: away.append(1))
    states = [next(looks)["state"]]
    shop.drain()
    states += [told["state"] for told, _ in zip(looks, range(2), strict=False)]
    looks.close()
    assert (states[0], states[-1], away) == ("running", "completed", [])


def test_what_is_no_json_is_told_before_it_is_sent(shop: Shop) -> None:
    result = call("start", "cli_orders", '{"number": NaN}', CONDUCTOR_URL=shop.url)
    assert (result.exit_code, "unexpected" in result.stderr) == (exits.FAILED, False), result.output


# Completion and help.


@pytest.mark.spec("CLI-3")
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_completes_commands_verbs_and_options(shell: str) -> None:
    script = _complete({"_CONDUCTOR_COMPLETE": f"{shell}_source"})
    assert "_CONDUCTOR_COMPLETE" in script
    for words, found in (
        ("conductor re", {"recover", "resolve", "resume", "retry", "revoke"}), ("conductor ops ", {"list", "show", "why", "retry", "cancel", "status"}),
        ("conductor --url http://here ops sh", {"show"}), ("conductor runs --err", {"--error-kind"}), ("conductor runs --state fa", {"failed"}),
        ("conductor schedules p", {"pause"}),
    ):
        *before, last = words.split(" ")
        env = {"_CONDUCTOR_COMPLETE": f"{shell}_complete", "COMP_WORDS": words, "COMP_CWORD": str(len(before)) if shell != "fish" else last}
        told = _complete(env).split("\n")
        names = {line.partition(",")[2] if shell == "bash" else line for line in told}
        names = {name.partition(",")[2].partition("\t")[0] if shell == "fish" else name for name in names}
        assert found <= names, (words, told)


def _complete(env: dict[str, str]) -> str:
    program = [sys.executable, "-c", "from conductor.cli import main; main()"]
    done = subprocess.run(program, env={**os.environ, "PYTHONPATH": str(ROOT), **env}, capture_output=True, text=True, check=False, timeout=60)
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout


def test_help_names_every_exit_code() -> None:
    text = " ".join(call("--help").stdout.split())
    for code in (name for name in vars(exits) if name.isupper() and isinstance(getattr(exits, name), int)):
        value: Any = getattr(exits, code)
        assert f"{value} " in text.partition("Exit codes:")[2], code
