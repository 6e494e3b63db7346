"""`--where` of retry, cancel, pause and resume on the command line: dry run, the same with --yes, and what is refused."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from click.testing import Result

from conductor.cli import batching, exits
from conductor.declare import registry
from conductor.operations import batches
from tests.integration.shop import Order, Shop
from tests.support.leaks import forget
from tests.support.listening import DOORS, by_door
from tests.support.server import ValkeyServer


class Counter(Shop):
    """The shop with failed orders."""

    def declare(self) -> None:
        super().declare()
        registry.register_capability(batches.batch, registry.place_of_caller())

    def call(self, *arguments: str, input: str | None = None) -> Result:
        """Over HTTP a worker does what `--yes` asks for."""
        if not (self.url and "--yes" in arguments):
            return super().call(*arguments, input=input)
        with self.working():
            return super().call(*arguments, input=input)

    def failing(self, count: int, **options: object) -> list[str]:
        flow = registry.declared["cli_orders"]
        ids = [str(flow.apply_async(Order(number=number, bad=True), **options).id) for number in range(count)]
        while not all(self.state(run_id) == "failed" for run_id in ids):
            self.drain()
        return ids


@pytest.fixture(params=DOORS)
def shop(request: pytest.FixtureRequest, valkey: ValkeyServer, namespace: str) -> Iterator[Counter]:
    with registry.isolated(), by_door(request.param, Counter(valkey.url(), namespace)) as one:
        yield one
    forget(valkey.client(), namespace)


@pytest.mark.spec("CLI-4")
def test_a_dry_run_says_how_many_shows_some_and_ends_with_the_command(shop: Counter) -> None:
    ids = shop.failing(7)
    where = "workflow=cli_orders status=failed since=2h"
    told = shop.ok("retry", "--where", where, "--reason", "the card service is back", "--rate", "500")
    assert "7 runs would be retried; nothing was done" in told
    assert sum(any(run_id[:18] in line for run_id in ids) for line in told.splitlines()) == 5  # lines: two ids may begin alike
    command = next(line for line in told.splitlines() if line.startswith("→ ")).removeprefix("→ ")
    assert "--yes" in command
    assert [shop.state(run_id) for run_id in ids] == ["failed"] * 7
    shop.mended = True
    done = shop.ok(*shlex.split(command)[1:])
    assert "7 runs: 7 retried" in done
    shop.drain()
    assert [shop.state(run_id) for run_id in ids] == ["completed"] * 7
    (batch,) = shop.conductor.operations()
    asked = shop.conductor.operation(batch.operation_id).params
    assert (asked["reason"], asked["rate"], bool(asked["actor"])) == ("the card service is back", 500.0, True)


@pytest.mark.spec("CLI-4", "CLI-3")
def test_json_says_the_same(shop: Counter) -> None:
    ids = shop.failing(2, tags=("eu",))
    dry = shop.json("retry", "--where", "tag=eu")
    assert (dry["dry_run"], dry["count"], dry["more"]) == (True, 2, False)
    assert {row["run_id"] for row in dry["examples"]} == set(ids)
    assert dry["command"].endswith("retry --where tag=eu --yes")
    done = shop.json("retry", "--where", "tag=eu", "--yes")
    assert (done["state"], done["done"], done["changed"], done["total"], done["errors"]) == ("completed", 2, 2, 2, [])
    assert shop.json("retry", "--where", "tag=nobody")["count"] == 0
    assert shop.json("retry", "--where", "tag=nobody", "--yes")["batch_id"] is None
    assert "no run matches" in shop.ok("retry", "--where", "tag=nobody")
    assert "no run matches" in shop.ok("retry", "--where", "tag=nobody", "--yes")


@pytest.mark.spec("CLI-4")
def test_the_other_actions_take_a_filter_too(shop: Counter) -> None:
    ids = [shop.start("cli_naps") for _ in range(3)]
    goes_on = ["running"] if shop.url == "" else ["running", "waiting_signal"]  # the worker that moves them also runs them
    for action, says, states in (("pause", "3 paused", ["paused"]), ("resume", "3 resumed", goes_on), ("cancel", "3 cancelled", ["cancelled"])):
        assert says in shop.ok(action, "--where", "workflow=cli_naps", "--yes")
        assert all(shop.state(run_id) in states for run_id in ids)
    assert "0 resumed" not in shop.ok("resume", "--where", "workflow=cli_naps", "--yes")


@pytest.mark.spec("CLI-4", "CLI-3")
@pytest.mark.parametrize("line", [
    "retry", "retry last --where status=failed", "retry --where ''", "retry --where nonsense", "retry --where statsu=failed",
    "retry --where 'status=failed status=queued'", "retry --where status=completed", "cancel --where \"tag='x\"", "retry --where since=soon",
    "retry --where tag=x --wait", "cancel --where tag=x --terminate", "pause --where tag=x --all", "resume --where tag=x --workflow y",
    "retry last --yes", "pause last --yes", "retry --where tag=x --rate 0", "cancel --where archived=true",
])
def test_wrong_usage_is_refused_and_nothing_is_done(shop: Counter, line: str) -> None:
    result = shop.call(*shlex.split(line))
    assert result.exit_code == exits.USAGE, result.output
    assert shop.conductor.operations() == []


@pytest.mark.spec("CLI-4")
@pytest.mark.parametrize("shop", ["http"], indirect=True)
def test_whoever_interrupts_it_over_http_has_stopped_it(shop: Counter, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_seconds: float) -> None:
        raise KeyboardInterrupt

    ids = shop.failing(2)
    monkeypatch.setattr(batching, "time", SimpleNamespace(sleep=interrupt))
    result = Shop.call(shop, "retry", "--where", "status=failed", "--yes")  # no worker is there
    assert result.exit_code == exits.INTERRUPTED
    assert "is stopped after 0 runs" in result.stderr
    shop.drain()
    assert [shop.state(run_id) for run_id in ids] == ["failed", "failed"]
    (batch,) = shop.conductor.operations()
    assert (batch.state, batch.reason) == ("cancelled", "interrupted")


@pytest.mark.spec("CLI-4")
@pytest.mark.parametrize("shop", ["direct"], indirect=True)
def test_whoever_interrupts_it_has_stopped_it(shop: Counter, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = shop.failing(4)
    real, moved = batches.perform, list[int]()

    def perform(*given: object, **how: object) -> None:
        real(*given, **how)  # type: ignore[arg-type]
        moved.append(1)
        if len(moved) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(batches, "perform", perform)
    monkeypatch.setattr(batches, "_TELL", 0.0)
    result = shop.call("retry", "--where", "status=failed", "--yes")
    assert result.exit_code == exits.INTERRUPTED
    assert "is stopped after" in result.stderr
    (batch,) = shop.conductor.operations()
    assert batch.state == "cancelled"
    shop.drain()
    lives = [sum(entry.startswith("g;") for entry in shop.engine.store.log_of(run_id)) for run_id in ids]
    assert sum(lives) == 2


@pytest.mark.spec("CLI-4", "ERR-2")
def test_what_could_not_be_moved_is_told_and_is_exit_code_1(shop: Counter) -> None:
    ids = shop.failing(3)
    shop.engine.store.client().hset(shop.engine.store.keys.run(ids[0]), "0", "no record")
    result = shop.call("retry", "--where", "status=failed", "--yes")
    assert result.exit_code == exits.FAILED
    assert "3 runs: 2 retried, 1 could not be moved" in result.stdout
    assert ids[0] in result.stderr


@pytest.mark.parametrize("shop", ["direct"], indirect=True)
def test_a_batch_that_is_left_to_workers_is_followed_to_its_end(shop: Counter, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.failing(3)
    monkeypatch.setattr(batches, "run_here", lambda engine, action, where, heard, **how: _left(shop, action, where))
    with shop.working():
        told = json.loads(shop.ok("retry", "--where", "status=failed", "--yes", "--json"))
    assert (told["state"], told["changed"]) == ("completed", 3)


def _left(shop: Counter, action: object, where: object) -> object:
    return SimpleNamespace(operation_id=batches.submit(shop.engine, action, where))  # type: ignore[arg-type]
