"""Tools and their probes: what passes, what fails, and how a disabled capability comes back."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from conductor import DeclarationError
from conductor.declare import needs as needs_module
from conductor.declare.needs import Need, Needs, Readiness, find, isolated, need
from tests.support.waiting import eventually


@pytest.fixture(autouse=True)
def own_tools() -> Iterator[None]:
    with isolated():
        yield


class Bench:
    """Tools whose state the test sets: `up`, or an error to raise. It counts how often each was probed."""

    def __init__(self, *names: str) -> None:
        self.down: dict[str, object] = {}
        self.probed: Counter[str] = Counter()
        self.needs = Needs({name: Need(name, self._probe(name)) for name in names})

    def _probe(self, name: str) -> Callable[[], object]:
        def probe() -> object:
            self.probed[name] += 1
            state = self.down.get(name)
            if isinstance(state, BaseException):
                raise state
            return state

        return probe


# Declaring.


@pytest.mark.spec("CAP-2")
def test_a_probe_is_registered_by_name_and_stays_a_function() -> None:
    @need("bridge")
    def bridge() -> str:
        return "here"

    need("lathe", seconds=1)(lambda: None)
    assert bridge() == "here"
    assert [tool.name for tool in find(("lathe", "bridge", "lathe"), "capability x")] == ["lathe", "bridge"]
    assert find(["lathe"], "x")[0].seconds == 1
    assert Needs().probe(("bridge", "lathe")) == {}


@pytest.mark.spec("CAP-2")
def test_an_unknown_tool_is_refused_with_those_there_are() -> None:
    need("bridge")(lambda: True)
    need("lathe")(lambda: True)
    for ask in (lambda: find(("bride",), "capability weld"), lambda: Needs().examine({"weld": ("bride",)})):
        with pytest.raises(DeclarationError, match=r"capability weld: needs 'bride', .*have: bridge, lathe"):
            ask()
    with pytest.raises(DeclarationError, match="have: none"):
        Needs({}).probe(("bridge",))


def test_a_single_name_is_not_read_letter_by_letter() -> None:
    need("bridge")(lambda: False)
    assert list(Needs().probe("bridge")) == ["bridge"]


def test_a_name_belongs_to_one_place_and_the_same_place_may_declare_it_again() -> None:
    for _ in range(2):
        need("bridge")(lambda: True)
    with pytest.raises(DeclarationError, match="declared in two places"):
        need("bridge")(lambda: True)


async def _later() -> None: ...


@pytest.mark.parametrize(
    ("name", "probe", "seconds"),
    [("", bool, 1), (None, bool, 1), ("x", None, 1), ("x", _later, 1), ("x", lambda tool: True, 1), ("x", lambda: True, 0), ("x", lambda: True, -1)],
)
def test_what_cannot_be_probed_is_refused(name: Any, probe: Any, seconds: float) -> None:
    with pytest.raises(DeclarationError):
        need(name, seconds=seconds)(probe)


# Probing.


@pytest.mark.spec("CAP-2")
@pytest.mark.parametrize("answer", [None, True, 0, "", [], "down", 1])
def test_whatever_is_returned_but_false_passes(answer: object) -> None:
    assert Needs({"tool": Need("tool", lambda: answer)}).probe(["tool"]) == {}


@pytest.mark.spec("CAP-2")
@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (False, "its probe returned False"), (ConnectionRefusedError(111, "refused"), "ConnectionRefusedError: [Errno 111] refused"),
        (SystemExit(3), "SystemExit: 3"), (KeyboardInterrupt(), "KeyboardInterrupt"),
        (OSError("redis://:hunter2@far.test/0 is away"), "OSError: redis://***@far.test/0 is away"),
    ],
)
def test_raising_or_false_fails_with_a_reason(state: object, reason: str) -> None:
    bench = Bench("bridge", "lathe")
    bench.down["bridge"] = state
    assert bench.needs.probe(["bridge", "lathe"]) == {"bridge": reason}


def test_a_probe_that_gives_something_to_await_has_not_been_run() -> None:
    assert "async" in Needs({"tool": Need("tool", lambda: _later())}).probe(["tool"])["tool"]


@pytest.mark.spec("CAP-2")
def test_a_hanging_probe_fails_and_holds_up_nobody() -> None:
    go, seen = threading.Event(), threading.Event()

    def hang() -> None:
        assert threading.current_thread().daemon
        seen.set()
        go.wait(60)

    tools = {name: Need(name, hang, 0.2) for name in ("bridge", "lathe", "press")} | {"saw": Need("saw", lambda: True)}
    failed: dict[str, str] = {}
    caller = threading.Thread(target=lambda: failed.update(Needs(tools).probe(list(tools))), daemon=True)
    caller.start()
    caller.join(30)
    assert failed == dict.fromkeys(("bridge", "lathe", "press"), "no answer within 0.2 s") and seen.wait(10)
    go.set()


def test_probes_run_side_by_side() -> None:
    """Each waits for the other two: one after the other they would all fail."""
    meeting = threading.Barrier(3)
    tools = {name: Need(name, lambda: meeting.wait(20), 30) for name in ("bridge", "lathe", "press")}
    assert Needs(tools).probe(list(tools)) == {}


def test_hanging_probes_do_not_pile_up_and_the_tool_can_come_back() -> None:
    go, begun = threading.Event(), Counter[str]()

    def probe() -> None:
        begun["bridge"] += 1
        go.wait(60)

    needs = Needs({"bridge": Need("bridge", probe, 0.02)})
    reasons = [needs.probe(["bridge"])["bridge"] for _ in range(12)]
    eventually(lambda: begun["bridge"] == needs_module._MOST_HANGING == 8, what="eight probes began")
    assert "8 earlier probes still hang" in reasons[-1]
    go.set()
    eventually(lambda: needs.probe(["bridge"]) == {}, what="the tool answers again once the old probes have ended")


# Disabled and back.


@pytest.mark.spec("CAP-2")
def test_examine_probes_each_tool_once_and_disables_with_the_reason() -> None:
    bench = Bench("bridge", "lathe", "saw")
    bench.down |= {"bridge": False, "lathe": OSError("no oil")}
    capabilities = {"weld": ("bridge",), "turn": ("lathe", "bridge"), "cut": ("saw",), "think": ()}
    found = bench.needs.examine(capabilities)
    assert bench.probed == {"bridge": 1, "lathe": 1, "saw": 1}
    assert found == dict(bench.needs.disabled) == {
        "weld": "bridge: its probe returned False", "turn": "lathe: OSError: no oil; bridge: its probe returned False",
    }
    bench.down.clear()
    assert bench.needs.examine(capabilities) == {} == dict(bench.needs.disabled)


def test_examining_some_leaves_the_others_as_they_are() -> None:
    bench = Bench("bridge", "saw")
    bench.down["bridge"] = False
    bench.needs.examine({"weld": ("bridge",)})
    bench.needs.examine({"cut": ("saw",)})
    assert list(bench.needs.disabled) == ["weld"]


@pytest.mark.spec("CAP-2")
def test_what_is_not_disabled_is_ready_without_probing() -> None:
    bench = Bench("bridge")
    bench.down["bridge"] = False
    assert bench.needs.check("weld", ("bridge",)) == Readiness(ready=True)
    assert not bench.probed


@pytest.mark.spec("CAP-2")
def test_a_disabled_one_is_probed_again_with_its_own_tools_only_and_restored() -> None:
    bench = Bench("bridge", "lathe")
    bench.down |= {"bridge": False, "lathe": False}
    bench.needs.examine({"weld": ("bridge",), "turn": ("lathe",)})
    bench.probed.clear()

    bench.down["bridge"] = OSError("still away")
    assert bench.needs.check("weld", ("bridge",)) == Readiness(ready=False, reason="bridge: OSError: still away")
    assert bench.needs.disabled["weld"] == "bridge: OSError: still away"

    del bench.down["bridge"]
    assert bench.needs.check("weld", ("bridge",)) == Readiness(ready=True, recovered=True)
    assert bench.needs.check("weld", ("bridge",)) == Readiness(ready=True)
    assert bench.probed == {"bridge": 2} and list(bench.needs.disabled) == ["turn"]


@pytest.mark.spec("CAP-2")
def test_one_tool_coming_back_does_not_restore_what_needs_another_too() -> None:
    bench = Bench("bridge", "lathe")
    bench.down |= {"bridge": False, "lathe": False}
    bench.needs.examine({"turn": ("lathe", "bridge"), "weld": ("bridge",)})
    del bench.down["bridge"]
    assert bench.needs.check("weld", ("bridge",)).recovered
    assert bench.needs.check("turn", ("lathe", "bridge")) == Readiness(ready=False, reason="lathe: its probe returned False")


@pytest.mark.spec("CAP-2")
def test_many_threads_may_probe_again_at_once() -> None:
    bench = Bench("bridge", "lathe")
    bench.down |= {"bridge": False, "lathe": False}
    bench.needs.examine({"weld": ("bridge",), "turn": ("lathe",)})
    del bench.down["bridge"]
    with ThreadPoolExecutor(8) as pool:
        welding = list(pool.map(lambda _: bench.needs.check("weld", ("bridge",)), range(40)))
        turning = list(pool.map(lambda _: bench.needs.check("turn", ("lathe",)), range(40)))
    assert all(found.ready for found in welding) and any(found.recovered for found in welding)
    assert not any(found.ready for found in turning)
    assert list(bench.needs.disabled) == ["turn"]


def test_the_disabled_set_is_for_reading() -> None:
    bench = Bench("bridge")
    bench.down["bridge"] = False
    seen = bench.needs.disabled
    bench.needs.examine({"weld": ("bridge",)})
    assert dict(seen) == {}, "what was handed out does not change under the reader"
    with pytest.raises(TypeError):
        bench.needs.disabled["weld"] = "x"  # type: ignore[index]
