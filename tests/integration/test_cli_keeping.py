"""The command line keeps the store in order and finds what is wrong: sweeper, fsck, check, doctor, purge; `dev` runs the stack."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from conductor.cli import exits, group
from conductor.declare import registry
from conductor.runs.execute import Drainer
from conductor.store import Want
from conductor.sweeps.overdue import run_overdue
from conductor.sweeps.retention import sweep_retention
from conductor.sweeps.stalled import sweep_stalled
from tests.integration.shop import Shop
from tests.support.server import ValkeyServer
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]


@pytest.fixture
def shop(valkey: ValkeyServer, namespace: str, clean_keys: None) -> Iterator[Shop]:
    with registry.isolated():
        yield Shop(valkey.url(), namespace)


@pytest.mark.spec("REC-4", "CLI-3")
def test_sweeper_puts_back_a_lost_step_and_a_dry_run_does_not(shop: Shop, valkey: ValkeyServer) -> None:
    store, client = shop.engine.store, valkey.client()
    drainer = Drainer(shop.engine, worker_name="doomed")
    run_id = shop.start()
    partition = int(run_id[-2:], 16)
    store.register_code("doomed", drainer.signatures)
    assert store.claim(partition, Want("celery", 1, "doomed", "tag", first=True)).attempts
    leases = store.keys.of(partition, "leases")
    client.zadd(leases, {f"{run_id}:0": 1}, xx=True)  # backdated: the worker is long dead
    assert client.hset(store.keys.head(partition), "look", str(client.time()[0] * 1000)) == 1  # and others have looked a moment ago

    def sweep(*more: str) -> Any:
        return next(report for report in shop.json("sweeper", "--once", *more)["sweeps"] if report["name"] == "stalled")

    assert sweep("--dry-run")["count"] == 1
    assert client.zscore(leases, f"{run_id}:0") is not None
    report = sweep()
    assert report["count"] == 1
    assert run_id in report["causes"][0]
    shop.drain()
    assert shop.state(run_id) == "completed"


@pytest.mark.spec("REC-4")
def test_sweeper_names_runs_that_have_not_moved(shop: Shop) -> None:
    run_id, nap = shop.start(), shop.start("cli_naps")
    shop.drain()
    stuck = shop.start()
    told = shop.json("sweeper", "--once", "--stale-after", "0s")["stale"]
    assert [one["run_id"] for one in told] == [stuck], "ended and sleeping runs are not stale"
    assert {run_id, nap}.isdisjoint(one["run_id"] for one in told)
    assert shop.json("sweeper", "--once")["stale"] == []


@pytest.mark.spec("REC-4")
def test_names_of_workers_not_seen_for_a_day_are_forgotten(shop: Shop, valkey: ValkeyServer) -> None:
    store, client = shop.engine.store, valkey.client()
    store.register_worker("new", "w1@host")
    now = client.time()[0] * 1000
    client.hset(store.keys.of(0, "workers"), mapping={"old": f"{now - 86_500_000};w2@host", "older": "17;w3@host"})
    assert sweep_retention(shop.engine, dry_run=True).count == 0
    assert client.hlen(store.keys.of(0, "workers")) == 3
    assert sweep_retention(shop.engine).count == 2
    assert client.hkeys(store.keys.of(0, "workers")) == ["new"]


@pytest.mark.spec("REC-4")
def test_sweeps_that_only_poked_again_are_no_news(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", logger="conductor.sweeps.guard")
    run_id = shop.start()
    store = shop.engine.store
    ready = store.keys.of(int(run_id[-2:], 16), "ready:celery")
    store.client().zadd(ready, {f"{run_id}:0": 5 * 10**13}, xx=True)  # long ago
    shop.engine.store.glance()
    report = sweep_stalled(shop.engine)
    assert report.causes == ("celery unclaimed",)
    assert [(one.levelname, "unclaimed" in one.message) for one in caplog.records] == [("DEBUG", True)]


@pytest.mark.spec("CLI-3")
def test_fsck_finds_nothing_and_then_what_was_broken(shop: Shop, valkey: ValkeyServer) -> None:
    run_id = shop.start()
    assert shop.json("fsck") == {"runs": 1, "differences": []}
    key = shop.engine.store.keys.run(run_id)
    valkey.client().hset(key, "l", 7)
    result = shop.call("fsck")
    assert result.exit_code == exits.FOUND_WRONG
    assert run_id in result.stdout
    valkey.client().hset(key, "l", 2)


@pytest.mark.spec("CLI-3", "WF-10")
def test_check_finds_runs_whose_code_is_gone(shop: Shop) -> None:
    run_id = shop.start()
    assert shop.json("check", "--live")["ok"]
    registry.declared.pop("cli_orders")
    assert shop.json("check")["ok"], "without --live nobody asks the store"
    result = shop.call("check", "--live", "--json")
    assert result.exit_code == exits.FOUND_WRONG
    orphan = json.loads(result.stdout)["orphans"][0]
    assert (orphan["workflow"], orphan["steps"], orphan["example"]) == ("cli_orders", ["charge", "price"], run_id)
    assert "1 live run of cli_orders" in shop.call("check", "--live").stdout


@pytest.mark.spec("SET-1", "CLI-3")
def test_doctor_tells_settings_with_sources_and_checks(shop: Shop) -> None:
    told = shop.json("doctor")
    assert {"name": "partitions", "value": 2, "source": "code"} in told["settings"]
    checks = {check["name"]: check["status"] for check in told["checks"]}
    assert checks["persistence"] == "ok"
    assert checks["sweeps"] == "warn"
    assert (checks["broker"], checks["workers"]) == ("ok", "warn")
    assert "WHAT TO DO" in shop.ok("doctor")


@pytest.mark.spec("REC-5")
def test_doctor_measures_each_sweep_by_its_own_interval(shop: Shop, valkey: ValkeyServer) -> None:
    run_overdue(shop.engine)
    key, (seconds, _) = shop.engine.store.keys.of(0, "sweeps"), valkey.client().time()

    def told(**minutes: float) -> tuple[str, str]:
        valkey.client().hset(key, mapping={name: int((seconds - 60 * ago) * 1000) for name, ago in minutes.items()})
        (check,) = [one for one in shop.json("doctor")["checks"] if one["name"] == "sweeps"]
        return check["status"], check["found"]

    status, found = told(recover=600, orphan_blobs=50, idle=59)
    assert status == "ok" and "idle 59" in found and "recover" not in found
    status, found = told(idle=200)
    assert status == "warn" and found.endswith("late: idle")
    assert told(idle=1, stalled=2)[0] == "warn"


@pytest.mark.spec("SET-1", "SET-3")
def test_doctor_tells_what_is_in_force_not_only_what_was_set(shop: Shop) -> None:
    told = {one["name"]: (one["value"], one["source"]) for one in shop.json("doctor")["settings"]}
    assert told["durability"] == ("always", "found on the server")
    assert told["default_queue"] == ("celery", "task_default_queue of the Celery app")
    assert told["heartbeat_seconds"] == (5.0, "default")
    assert told["liveness_file"] == (None, "default")
    shown = shop.ok("doctor")
    assert re.search(r"durability +always +found on the server", shown)


@pytest.mark.spec("SET-1")
def test_doctor_shows_no_secret(valkey: ValkeyServer, namespace: str, clean_keys: None) -> None:
    with registry.isolated():
        shop = Shop(valkey.url(), namespace, notify_secret="correct horse battery")
        assert "correct horse" not in shop.ok("doctor") + shop.ok("doctor", "--json")


@pytest.fixture
def demo_directory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where demos of this test put their files, with a name short enough for sockets; what they say to their workers is taken back."""
    for name in ("CONDUCTOR_REDIS_URL", "CONDUCTOR_DEMO_BROKER", "CONDUCTOR_DEMO_LEDGER"):
        monkeypatch.setenv(name, "nowhere")
    with tempfile.TemporaryDirectory(prefix="cd-") as directory:
        monkeypatch.setattr(tempfile, "tempdir", directory)
        yield Path(directory)


@pytest.mark.spec("CLI-3")
def test_demo_refuses_nothing_to_do_and_leaves_nothing_behind(demo_directory: Path) -> None:
    for wrong in (["--parcels", "0"], ["--seconds", "-1"], ["--parcels", "many"]):
        result = CliRunner().invoke(group, ["demo", *wrong])
        assert (result.exit_code, "Invalid value" in result.stderr) == (exits.USAGE, True)
    assert list(demo_directory.iterdir()) == []


@pytest.mark.spec("CLI-3")
def test_demo_that_is_broken_off_leaves_nothing_behind(demo_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from conductor.cli import demo

    def stop(*_: Any) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(demo._Stage, "play", stop)
    assert CliRunner().invoke(group, ["demo", "--json"]).exit_code == exits.INTERRUPTED
    assert list(demo_directory.glob("conductor-demo-*")) == []


@pytest.mark.spec("CLI-3")
def test_demo_answers_in_json(demo_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from conductor.cli import demo

    monkeypatch.setattr(demo._Stage, "play", lambda stage, parcels, seconds: stage.told.update(parcels=parcels) or parcels == 7)
    told = CliRunner().invoke(group, ["demo", "--json", "--parcels", "7"])
    assert (told.exit_code, json.loads(told.stdout)) == (exits.OK, {"ok": True, "parcels": 7, "directory": None})
    failed = CliRunner().invoke(group, ["demo", "--json", "--parcels", "8"])
    kept = json.loads(failed.stdout)["directory"]
    assert (failed.exit_code, Path(kept).is_dir()) == (exits.FAILED, True)


@pytest.mark.spec("CLI-3")
def test_options_of_the_measurements_reach_them(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    monkeypatch.setitem(sys.modules, "ops.bench.run", SimpleNamespace(main=lambda arguments: seen.append(arguments) or 0, __spec__=object()))
    for arguments in (["--list"], ["--only", "chain", "--rounds", "1"], ["--", "--help"]):
        assert CliRunner().invoke(group, ["bench", *arguments]).exit_code == exits.OK
    assert seen == [["--list"], ["--only", "chain", "--rounds", "1"], ["--help"]]


@pytest.mark.spec("CLI-3")
def test_purge_asks_before_it_deletes_many(shop: Shop) -> None:
    ended = [shop.start() for _ in range(3)]
    shop.drain()
    alive = shop.start()
    assert shop.json("purge", "--state", "completed", "--dry-run")["found"] == 3
    assert shop.json("purge", "--state", "completed", "--older-than", "1h", "--yes")["found"] == 0
    assert shop.call("purge", "--state", "completed", input="n\n").exit_code == exits.FAILED
    assert shop.call("purge", ended[0], input="n\n").exit_code == exits.FAILED
    assert shop.call("purge", ended[0], "--json").exit_code == exits.USAGE, "a program cannot be asked"
    assert shop.state(ended[0]) == "completed"
    assert shop.call("purge", ended[0], input="y\n").exit_code == exits.OK
    assert shop.call("show", ended[0]).exit_code == exits.NOT_FOUND
    assert shop.json("purge", "--state", "completed", "--yes")["purged"] == 2
    assert [run["run_id"] for run in shop.json("runs")["runs"]] == [alive]


PROGRAM = [sys.executable, "-c", "from conductor.cli import main; main()", "-A", "workers"]


@pytest.mark.spec("CLI-3")
def test_dev_runs_the_stack_and_stops_cleanly(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for name in ("CONDUCTOR_REDIS_URL", "CELERY_BROKER_URL", "CONDUCTOR_NAMESPACE"):
        environment.pop(name, None)
    log = tmp_path / "dev.log"
    with log.open("wb") as errors:
        dev = subprocess.Popen(
            [*PROGRAM, "dev", "-c", "1", "-l", "WARNING", "--json"], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=errors)
    try:
        assert dev.stdout is not None
        started = [json.loads(dev.stdout.readline()) for _ in range(2)]
        assert [one["process"] for one in started] == ["worker", "beat"]
        letter = '{"to": "Ada", "text": "it works"}'
        run = subprocess.run(
            [*PROGRAM, "start", "chain", letter, "--wait", "--timeout", "60s", "--json"], cwd=tmp_path, env=environment, check=False,
            capture_output=True, timeout=90)
        assert run.returncode == 0, f"{run.stderr!r}\n{log.read_text()}"
        assert json.loads(run.stdout)["result"].startswith("Dear Ada,")
        dev.send_signal(signal.SIGINT)
        assert dev.wait(40) == 0, log.read_text()
        stopped = [json.loads(line) for line in dev.stdout]
        assert [(one["event"], one["exit"]) for one in stopped] == [("stopped", 0), ("stopped", 0)]
        eventually(lambda: not any(_lives(one["pid"]) for one in started))
    finally:
        if dev.poll() is None:
            dev.send_signal(signal.SIGTERM)
            dev.wait(60)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
