"""The command line against a real server, with a worker in a thread: what it prints, what it answers in JSON, and its exit codes."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from click.testing import CliRunner

from conductor.cli import acting, exits, group
from conductor.cli.finding import Here, find_app
from conductor.declare import registry
from conductor.runs.execute import Drainer
from conductor.store import Want
from tests.integration.shop import Shop
from tests.support.listening import DOORS, by_door
from tests.support.server import ValkeyServer, free_port

COMMANDS = [
    "bench", "cancel", "check", "dev", "doctor", "events", "fork", "fsck", "graph", "pause", "purge", "queues", "resume", "retry", "runs",
    "show", "start", "sweeper", "watch", "why",
]


@pytest.fixture(params=DOORS)
def shop(request: pytest.FixtureRequest, valkey: ValkeyServer, namespace: str, clean_keys: None) -> Iterator[Shop]:
    with registry.isolated(), by_door(request.param, Shop(valkey.url(), namespace)) as one:
        yield one


@pytest.mark.spec("CLI-3")
def test_every_command_is_there_and_has_json_and_help() -> None:
    listed = group.list_commands(group.make_context("conductor", ["runs"], resilient_parsing=True))
    assert set(COMMANDS) <= set(listed)
    for name in COMMANDS:
        text = CliRunner().invoke(group, [name, "--help"]).stdout
        assert "--json" in text, name
        assert "--traceback" in text, name


@pytest.mark.spec("CLI-3")
def test_start_waits_and_prints_the_result(shop: Shop) -> None:
    with shop.working():
        assert shop.ok("start", "cli_orders", '{"number": 20}', "--wait", "--timeout", "30s").strip() == "41"
        told = shop.json("start", "cli_orders", '{"number": 20}', "--wait", "--key", "k1")
    assert (told["state"], told["result"]) == ("completed", 41)
    again = shop.json("start", "cli_orders", '{"number": 20}', "--key", "k1")
    assert (again["run_id"], again["new"], told["new"]) == (told["run_id"], False, True)
    spoken = shop.call("start", "cli_orders", '{"number": 20}', "--key", "k1")
    assert (spoken.stdout.strip(), "existed already" in spoken.stderr) == (told["run_id"], True)
    refused = shop.call("start", "cli_orders", '{"number": 21}', "--key", "k1")
    assert refused.exit_code == exits.FAILED
    assert "already belongs to run" in refused.stderr


@pytest.mark.spec("CLI-3")
def test_input_comes_from_a_file_or_standard_input(shop: Shop, tmp_path: Path) -> None:
    file = tmp_path / "order.json"
    file.write_text('{"number": 4}')
    run_id = shop.ok("start", "cli_orders", f"@{file}").strip()
    assert shop.json("show", run_id, "--values")["input"] == {"number": 4, "bad": False, "note": ""}
    assert shop.call("start", "cli_orders", "-", input='{"number": 5}').exit_code == exits.OK
    assert shop.call("start", "cli_orders", "{number").exit_code == exits.USAGE
    assert shop.call("start", "cli_orders", "@/nowhere/at/all").exit_code == exits.USAGE


@pytest.mark.spec("BAD-1")
@pytest.mark.parametrize(("text", "code", "words"), [
    ("[" * 5000 + "]" * 5000, exits.FAILED, "nested deeper than 100 levels"),
    ('{"number": 1, "number": 2}', exits.USAGE, "the key 'number' stands twice"),
    ('{"number": 1, "note": "bell \\u0007"}', exits.FAILED, "note: it holds a control character"),
    (None, exits.FAILED, "nothing was given; Order was expected, which needs number"),
    ('{"number": "1"}', exits.FAILED, "number: Input should be a valid integer, text was given; types are strict"),
])
def test_input_that_means_nothing_is_refused_before_anything_is_written(shop: Shop, text: str | None, code: int, words: str) -> None:
    result = shop.call("start", "cli_orders", *([] if text is None else ["-"]), input=text)
    assert (result.exit_code, words in result.stderr) == (code, True), result.stderr
    assert shop.json("runs")["runs"] == []


@pytest.mark.spec("CLI-3", "ERR-2")
def test_errors_are_one_line_with_a_stable_exit_code(shop: Shop) -> None:
    shop.start()
    cases = {
        ("start", "cli_orders", '{"number": "x"}'): (exits.FAILED, "bad_input"),
        ("start", "cli_ordres"): (exits.NOT_FOUND, "unknown_workflow"),
        ("show", "ffffffff-ffff"): (exits.NOT_FOUND, "unknown_run"),
        ("fork", "last", "--from", "nothing"): (exits.NOT_FOUND, "unknown_step"),
        ("retry", "last"): (exits.FAILED, "not_failed"),
        ("purge", "last"): (exits.FAILED, "not_ended"),
        ("start", "cli_naps", "--wait", "--timeout", "0.05"): (exits.TIMED_OUT, "get_timeout"),
    }
    for arguments, (code, word) in cases.items():
        result = shop.call(*arguments)
        assert result.exit_code == code, (arguments, result.stderr)
        assert result.stderr.strip().splitlines()[-1].startswith("error: "), result.stderr
        assert "Traceback" not in result.output
        assert json.loads(shop.call(*arguments, "--json").stderr.splitlines()[-1])["error"]["code"] == word
    assert "Traceback" in shop.call("retry", "last", "--traceback").stderr


@pytest.mark.spec("CLI-3")
def test_wrong_usage_is_told_apart(shop: Shop) -> None:
    for line in ("nonsense", "runs --state odd", "pause", "pause last --all", "runs --cursor x", "runs --since soon", "show zz", "purge"):
        assert shop.call(*line.split()).exit_code == exits.USAGE, line
    assert "did you mean" in shop.call("cancle").stderr


@pytest.mark.spec("CLI-3")
@pytest.mark.parametrize("line", ["nonsense", "runs --state odd", "pause", "runs --cursor x", "show zz", "runs --no-such-option", "start"])
def test_wrong_usage_is_json_where_that_was_asked_for(shop: Shop, line: str) -> None:
    for arguments in ([*line.split(), "--json"], ["--json", *line.split()]):
        result = shop.call(*arguments)
        assert (result.exit_code, result.stdout) == (exits.USAGE, "")
        (told,) = map(json.loads, result.stderr.splitlines())
        assert (told["error"]["code"], told["error"]["exit"]) == ("usage", exits.USAGE)


@pytest.mark.spec("CLI-3")
def test_json_may_be_asked_for_before_the_command(shop: Shop) -> None:
    run_id = shop.start()
    assert json.loads(shop.ok("--json", "runs"))["runs"][0]["run_id"] == run_id


def test_no_summary_in_the_list_of_commands_is_cut() -> None:
    text = CliRunner().invoke(group, ["--help"]).stdout
    assert [line for line in text.splitlines() if line.endswith("...")] == ["Usage: conductor [OPTIONS] COMMAND [ARGS]..."]


@pytest.mark.spec("CLI-3")
def test_short_prefixes_name_runs_and_ambiguous_ones_are_refused(shop: Shop) -> None:
    first = shop.start()
    assert shop.json("show", first[:13])["run_id"] == first
    assert shop.json("show", "last")["run_id"] == first
    second = shop.start()
    common = next(first[:size] for size in range(13, 3, -1) if first[:size] == second[:size])
    result = shop.call("show", common)
    assert result.exit_code == exits.USAGE
    assert "several run ids" in result.stderr


@pytest.mark.spec("CLI-3")
def test_a_store_that_is_away_is_exit_code_four(namespace: str) -> None:
    with registry.isolated():
        shop = Shop(f"redis://:hunter2@127.0.0.1:{free_port()}/0", namespace)
        for arguments in (["runs"], ["why", "last"], ["start", "cli_naps"], ["pause", "--all"], ["doctor"], ["sweeper", "--once"]):
            result = shop.call(*arguments)
            assert result.exit_code == exits.UNREACHABLE, (arguments, result.output)
            assert "hunter2" not in result.output + result.stderr
            assert "Traceback" not in result.output + result.stderr


@pytest.mark.spec("CLI-3")
def test_runs_are_listed_and_filtered(shop: Shop) -> None:
    good, bad = shop.start(), shop.start(value={"number": 1, "bad": True})
    shop.drain()
    told = shop.json("runs")
    assert [run["run_id"] for run in told["runs"]] == [bad, good]
    assert [run["run_id"] for run in shop.json("runs", "--state", "failed")["runs"]] == [bad]
    assert shop.json("runs", "--workflow", "cli_naps")["runs"] == []
    assert shop.json("runs", "--until", "1h")["runs"] == []
    page = shop.json("runs", "--limit", "1")
    assert [run["run_id"] for run in shop.json("runs", "--limit", "1", "--cursor", page["cursor"])["runs"]] == [good]
    text = shop.ok("runs")
    assert good[:18] in text
    assert "failed" in text


@pytest.mark.spec("CLI-3")
def test_show_events_and_watch_tell_the_story(shop: Shop) -> None:
    run_id = shop.start(value={"number": 1, "bad": True})
    with shop.working():
        watched = shop.call("watch", run_id, "--timeout", "30s")
    assert watched.exit_code == exits.FAILED
    assert "card refused" in watched.stdout
    shown = shop.ok("show", run_id)
    assert "ValueError: card refused" in shown
    assert {step["name"]: step["state"] for step in shop.json("show", run_id)["steps"]} == {"price": "completed", "charge": "failed"}
    lines = [json.loads(line) for line in shop.ok("events", run_id, "--json").splitlines()]
    assert [line["number"] for line in lines] == list(range(1, len(lines) + 1))
    assert lines[0]["kind"] == "started"
    assert lines[-1]["kind"] == "ended"
    assert len(shop.ok("events", run_id, "--after", "2").splitlines()) == len(lines) - 2
    assert shop.call("watch", shop.start("cli_naps"), "--timeout", "0.1").exit_code == exits.TIMED_OUT


@pytest.mark.spec("CLI-3")
def test_events_stand_in_columns_with_the_date_of_another_day(shop: Shop, valkey: ValkeyServer) -> None:
    run_id = shop.start()
    shop.drain()
    lines = shop.ok("events", run_id).splitlines()
    assert len({line.index(word) for line, word in zip(lines, ("generation 1", "by w1"), strict=False)}) == 1
    assert re.fullmatch(r" +1  \d\d:\d\d:\d\d\.\d{3} UTC  started +generation 1", lines[0])
    log = shop.engine.store.keys.run(run_id, "log")
    valkey.client().lset(log, 0, "s;1763467220000;1;0")
    assert shop.ok("events", run_id).splitlines()[0].split()[1:4] == ["2025-11-18", "12:00:20.000", "UTC"]


@pytest.mark.spec("CLI-3")
def test_workers_are_told_by_name_and_a_forgotten_one_by_its_tag(shop: Shop, valkey: ValkeyServer) -> None:
    store, drainer = shop.engine.store, Drainer(shop.engine, worker_name="w1")
    run_id = shop.start()
    store.register_code("c", drainer.signatures)
    store.register_worker("eec4a0f8", "w7@host")
    assert store.claim(int(run_id[-2:], 16), Want("celery", 1, "c", "eec4a0f8", first=True)).attempts
    assert "on w7@host" in shop.ok("show", run_id)
    assert "is running price on w7@host" in shop.ok("why", run_id)
    assert shop.ok("events", run_id).splitlines()[1].endswith("by w7@host")
    assert shop.json("show", run_id)["steps"][0]["worker"] == "w7@host"
    valkey.client().delete(store.keys.of(0, "workers"))
    assert "on eec4a0f8" in shop.ok("show", run_id)


@pytest.mark.spec("CLI-3")
def test_steps_that_took_no_time_and_runs_that_were_cancelled_are_shown_so(shop: Shop) -> None:
    done = shop.start()
    shop.drain()
    assert [re.search(r"\d\.\d+s", line) is not None for line in shop.ok("show", done).splitlines()[-2:]] == [True, True]
    cancelled = shop.start()
    shop.ok("cancel", cancelled)
    row = next(line for line in shop.ok("runs").splitlines() if line.startswith(cancelled[:18]))
    assert "left" not in row
    told = next(run for run in shop.json("runs")["runs"] if run["run_id"] == cancelled)
    assert (told["ready"], told["running"]) == (0, 0)
    assert re.search(r"ended .* UTC by \w+", shop.ok("show", cancelled))


@pytest.mark.spec("CLI-3", "WF-9")
def test_a_delayed_start_says_when_it_begins(shop: Shop) -> None:
    later = shop.json("start", "cli_orders", '{"number": 1}', "--countdown", "1h")["run_id"]
    assert re.search(r"starts at (\S+ )?\d\d:\d\d:\d\d UTC", shop.ok("show", later))
    assert re.search(r"starts at (\S+ )?\d\d:\d\d:\d\d UTC", shop.ok("runs"))
    listed, shown = shop.json("runs")["runs"][0], shop.json("show", later)
    assert listed["starts_at"] == shown["starts_at"] >= listed["created_at"] + 3_600_000


@pytest.mark.spec("CLI-3", "RUN-11")
def test_retry_and_fork(shop: Shop) -> None:
    run_id = shop.start(value={"number": 1, "bad": True})
    shop.drain()
    shop.mended = True
    with shop.working():
        assert shop.json("retry", run_id, "--wait")["result"] == 3
        forked = shop.call("fork", run_id, "--from", "charge", "--set", "number=9", "--wait")
        assert forked.stdout.strip() == "3", "the price is kept, so the new number is not seen"
        assert "happen again" in forked.stderr
        told = shop.json("fork", run_id, "--from", "price", "--set", "number=9", "--wait")
    assert told["result"] == 19
    assert told["forked_from"] == run_id
    assert shop.json("show", run_id)["generation"] == 2


@pytest.mark.spec("CLI-3")
def test_cancel_says_what_it_found(shop: Shop) -> None:
    run_id = shop.start()
    assert shop.json("cancel", run_id, "--reason", "a mistake")["word"] == "OK"
    assert shop.json("cancel", run_id)["word"] == "ALREADY"
    done = shop.start()
    shop.drain()
    refused = shop.call("cancel", done)
    assert refused.exit_code == exits.FAILED
    assert "already ended: completed" in refused.stderr
    assert shop.state(done) == "completed"


def _paused(shop: Shop) -> str:
    run_id = shop.start()
    shop.ok("pause", run_id)
    return run_id


def _failed(shop: Shop) -> str:
    run_id = shop.start(value={"number": 1, "bad": True})
    shop.drain()
    shop.mended = True
    return run_id


def _held_by(*scope: str) -> Callable[[Shop], str]:
    def held(shop: Shop) -> str:
        shop.ok("pause", *scope, "--reason", "the till is broken")
        run_id = shop.start()
        shop.drain()
        return run_id

    return held


@pytest.mark.spec("CLI-5", "RUN-14")
@pytest.mark.parametrize(("stuck", "sentence"), [
    (_paused, "is paused on request"), (_failed, "card refused"), (_held_by("--all"), "the till is broken"),
    (_held_by("--workflow", "cli_orders"), "the till is broken"), (_held_by("--queue", "celery"), "the till is broken"),
])
def test_why_names_the_cause_and_the_command_that_moves_it(shop: Shop, stuck: Callable[[Shop], str], sentence: str) -> None:
    run_id = stuck(shop)
    shop.drain()
    assert shop.state(run_id) != "completed"
    told = shop.json("why", run_id)
    assert sentence in told["sentence"]
    printed = shop.ok("why", run_id).splitlines()
    assert printed == [told["sentence"], f"→ {told['command']}"]
    program, *arguments = shlex.split(told["command"])
    assert program == "conductor"
    shop.ok(*arguments)
    shop.drain()
    assert shop.state(run_id) == "completed"
    assert shop.json("why", run_id)["command"] is None


@pytest.mark.spec("CLI-5")
def test_why_speaks_of_sleep_delay_and_the_end(shop: Shop) -> None:
    nap = shop.start("cli_naps")
    shop.drain()
    assert "sleeps in rest until" in shop.ok("why", nap)
    later = shop.json("start", "cli_orders", '{"number": 1}', "--countdown", "1h")["run_id"]
    assert "has not begun: it starts at" in shop.ok("why", later)
    shop.ok("cancel", later, "--reason", "a mistake")
    assert "was cancelled (a mistake)" in shop.ok("why", later)


@pytest.mark.spec("CLI-3")
def test_queues_show_what_stands_ready_and_what_is_paused(shop: Shop) -> None:
    shop.start()
    shop.ok("pause", "--queue", "celery", "--reason", "night")
    told = shop.json("queues")
    assert [(queue["queue"], queue["ready"]) for queue in told["queues"]] == [("celery", 1)]
    assert told["holds"]["queue:celery"]["reason"] == "night"
    assert "conductor resume --queue celery" in shop.ok("queues")
    assert shop.json("resume", "--queue", "celery")["word"] == "OK"
    assert shop.json("resume", "--queue", "celery")["word"] == "NOT_HELD"


@pytest.mark.spec("RUN-14", "BAD-1")
def test_only_what_could_be_declared_can_be_paused(shop: Shop) -> None:
    for arguments in (("--workflow", "a b"), ("--workflow", ""), ("--queue", "a;b"), ("--workflow", "x" * 129), ("--capability", "a b")):
        assert shop.call("pause", *arguments).exit_code == exits.USAGE, arguments
    assert shop.json("queues")["holds"] == {}
    unknown = shop.call("pause", "--workflow", "cli_ordres")
    assert (unknown.exit_code, "warning: no workflow 'cli_ordres' is declared here" in unknown.stderr) == (exits.OK, True)
    assert "warning" not in shop.call("pause", "--workflow", "cli_orders").stderr
    run_id = shop.start("cli_naps")
    registry.declared.pop("cli_naps")
    assert "warning" not in shop.call("pause", "--workflow", "cli_naps").stderr, f"{run_id} has that name"


@pytest.mark.spec("RUN-14")
def test_a_capability_is_paused_and_resumed(shop: Shop) -> None:
    assert "warning: no capability 'bill' is registered here" in shop.call("pause", "--capability", "bill").stderr
    assert list(shop.json("queues")["holds"]) == ["capability:bill"]
    assert "conductor resume --capability bill" in shop.ok("queues")
    assert shop.json("resume", "--capability", "bill")["word"] == "OK"


@pytest.mark.spec("RUN-14")
def test_pausing_again_keeps_the_first_reason(shop: Shop) -> None:
    shop.ok("pause", "--queue", "celery", "--reason", "night")
    again = shop.call("pause", "--queue", "celery", "--reason", "other")
    assert (again.exit_code, "was paused before (night)" in again.stdout) == (exits.OK, True)
    assert shop.json("pause", "--queue", "celery")["word"] == "ALREADY"
    assert shop.json("queues")["holds"]["queue:celery"]["reason"] == "night"


@pytest.mark.spec("RUN-14", "CLI-3")
def test_runs_that_are_held_are_marked_with_the_holds_that_concern_them(shop: Shop) -> None:
    order, nap = shop.start(), shop.start("cli_naps")
    shop.ok("pause", "--workflow", "cli_orders", "--reason", "night")
    shop.ok("pause", "--queue", "gpu")
    rows = {line[:18]: line for line in shop.ok("runs").splitlines()}
    assert "held: workflow cli_orders" in rows[order[:18]]
    assert "held" not in rows[nap[:18]]
    assert {run["run_id"]: run["held"] for run in shop.json("runs")["runs"]} == {order: ["workflow:cli_orders"], nap: []}
    assert "held: workflow cli_orders (night); conductor resume --workflow cli_orders" in shop.ok("show", order)
    assert (shop.json("show", order)["holds"], shop.json("show", nap)["holds"]) == ({"workflow:cli_orders": "night"}, {})
    resumed = shop.call("resume", order)
    assert "conductor resume --workflow cli_orders" in resumed.stderr
    assert shop.json("resume", order)["held"] == ["workflow:cli_orders"]


@pytest.mark.spec("WF-10", "CLI-5")
def test_a_worker_without_code_sets_steps_aside_and_pokes_nobody(shop: Shop) -> None:
    run_id = shop.start()
    registry.declared.clear()
    poked: list[Any] = []
    drainer = Drainer(replace(shop.engine, poke=poked.extend, capabilities={}), worker_name="bare")
    for _ in range(5):
        drainer.drain(int(run_id[-2:], 16), "celery")
    assert poked == []
    assert "no worker present has the code of price" in shop.ok("why", run_id)
    assert shop.state(run_id) == "running"


@pytest.mark.spec("CLI-3")
def test_graph_is_a_table_mermaid_or_json(shop: Shop) -> None:
    assert [node["after"] for node in shop.json("graph", "cli_orders")["nodes"]] == [[], ["price"]]
    assert shop.ok("graph", "cli_orders", "--mermaid").splitlines()[0] == "flowchart LR"
    assert "n0 --> n1" in shop.ok("graph", "cli_orders", "--mermaid")
    assert "charge" in shop.ok("graph", "cli_orders")


APP = """
from celery import Celery
from conductor import Conductor
{name} = Celery("found", broker="memory://", set_as_current=False)
Conductor({name}, autodiscover=False, redis_url={url!r}, namespace={namespace!r}, partitions=2)
"""


@pytest.mark.spec("CLI-3")
def test_the_app_is_found_as_celery_finds_it(shop: Shop, valkey: ValkeyServer, namespace: str, tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / f"plain_{namespace}.py").write_text(APP.format(name="application", url=valkey.url(), namespace=namespace))
    package = tmp_path / f"site_{namespace}"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "celery.py").write_text(APP.format(name="app", url=valkey.url(), namespace=namespace))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in (f"plain_{namespace}", f"plain_{namespace}:application", f"plain_{namespace}.application", f"site_{namespace}"):
        assert find_app(name).main == "found", name
    run_id = shop.start()
    for environment in ({"CELERY_APP": f"plain_{namespace}"}, {"APP": f"site_{namespace}"}):
        result = CliRunner(env=environment).invoke(group, ["show", run_id, "--json"])
        assert json.loads(result.stdout)["run_id"] == run_id
    for wrong in ("nowhere_at_all", f"plain_{namespace}:other"):
        assert CliRunner().invoke(group, ["-A", wrong, "runs"]).exit_code == exits.USAGE


@pytest.mark.spec("CLI-3")
def test_it_is_a_command_of_celery_itself(shop: Shop, monkeypatch: Any) -> None:
    from celery.bin.celery import celery

    monkeypatch.setitem(celery.commands, group.name, group)
    run_id = shop.start()
    result = CliRunner().invoke(celery, ["conductor", "why", run_id, "--json"], obj=None, default_map={"app": shop.app})
    assert result.exit_code == exits.OK, result.output
    assert json.loads(result.stdout)["run_id"] == run_id
    assert CliRunner().invoke(celery, ["conductor", "show", "ffffffff"], default_map={"app": shop.app}).exit_code == exits.NOT_FOUND


def test_an_app_without_a_conductor_is_told_so() -> None:
    bare = Celery("bare", broker="memory://", set_as_current=False)
    result = CliRunner().invoke(group, ["runs"], obj=SimpleNamespace(app=bare))
    assert result.exit_code == exits.USAGE
    assert "has no Conductor" in result.stderr
    assert Here("a.b").app_name == "a.b"


@pytest.mark.spec("CLI-3", "CLI-5")
def test_who_waits_for_long_is_told_what_for(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acting, "_TELL_AFTER", 0.2)
    waited = shop.call("start", "cli_orders", '{"number": 3}', "--wait", "--timeout", "1s")
    assert waited.exit_code == exits.TIMED_OUT
    assert " of cli_orders has price ready" in waited.stderr
    assert waited.stdout == ""
