"""A recount of one run from its records, index entries and log, against the counters that its hash keeps."""

from __future__ import annotations

import redis

from conductor.fold import fold
from conductor.log import parse_all
from conductor.records import Graph, NodeKind
from conductor.store import Store
from tests.integration.playing import Player

__all__ = ["Recount"]

_ENDED = ("completed", "failed", "cancelled")
_HOOKS = (NodeKind.ON_FAILURE, NodeKind.ON_FINISH)


class Recount:
    """Asserts that everything adds up."""

    client: redis.Redis
    store: Store
    play: Player

    def standing(self) -> dict[str, int]:
        """`run:index` → how many entries stand for it: ready, held with its workflow, set aside."""
        of, found = self.store.keys.of, [*self.play.ready(), *self.play.ready("q!ai")]
        found += list(self.client.zrange(of(0, "limited:q!ai"), 0, -1))
        found += [entry.partition("\n")[2] for entry in self.client.zrange(of(0, "held:flow"), 0, -1)]
        for signature in self.client.zrange(of(0, "aside"), 0, -1):
            found += [entry.split("\n")[2] for entry in self.client.lrange(of(0, f"aside:{signature}"), 0, -1)]
        return {member: found.count(member) for member in found}

    def count(self, run_id: str, graph: Graph, standing: dict[str, int]) -> None:
        key = self.store.keys.run(run_id)
        run = self.client.hgetall(key)
        told = {name: int(run.get(name, 0)) for name in ("l", "r", "a", "d", "f", "o", "oa", "ch")}
        steps = {one.index: run.get(str(one.index), "P").split(";") for one in graph.nodes}
        left = sum(steps[one.index][0] not in "CFZ" for one in graph.steps)
        failed = sum(steps[one.index][0] == "F" for one in graph.steps)
        phase = run.get("ph", "")
        over_time = any(entry[0] == "d" for entry in self.play.log(run_id))
        assert told["l"] == left
        assert told["f"] == failed or (over_time and told["f"] == max(1, failed))
        if run["st"] in _ENDED:
            return
        on_hold = self.client.lrange(f"{key}:held", 0, -1)
        ready = active = due = calling = 0
        waiting: list[int] = []
        for one in graph.nodes:
            if (phase == "H" and one.kind not in _HOOKS) or (phase == "C" and one.kind is not NodeKind.UNDO):
                continue
            if phase == "C" and one.undoes is not None:
                for field, text in self.client.hgetall(f"{key}:e{one.undoes}:0").items():
                    letter = text[0] if field.endswith("u") else ""
                    ready, active, due = ready + (letter == "R"), active + (letter == "X"), due + (letter == "T")
                    assert letter != "R" or standing.get(f"{run_id}:{one.index}:{field[:-1]}", 0) >= 1, "an undo is ready and stands nowhere"
            letter = steps[one.index][0]
            each = self.client.hgetall(f"{key}:e{one.index}") if one.kind is NodeKind.EACH else {}
            chunk = self.client.hgetall(f"{key}:e{one.index}:0") if each else {}
            items = [text.split(";") for field, text in chunk.items() if field.isdigit()]
            by_items = one.kind is NodeKind.EACH and int(each.get("cursor", 0)) > 0
            stands = letter == "R" if one.kind is not NodeKind.EACH else letter in "RX" and each.get("listed") == "1"
            ready += stands
            if stands and phase not in ("F", "U"):
                entries = standing.get(f"{run_id}:{one.index}", 0) + (str(one.index) in on_hold)
                assert entries >= 1, f"step {one.index} is ready and stands nowhere"
            active += (letter == "X" and not by_items) + sum(item[0] == "X" for item in items)
            due += letter == "T" and not by_items
            waiting += [one.index] if letter == "W" and one.kind is not NodeKind.CALL else []
            calling += letter == "W" and one.kind is NodeKind.CALL
            due += sum(item[0] == "T" for item in items)
            if by_items:
                self.count_items(each, items, f"{key}:e{one.index}")
        assert told["a"] == active
        if phase not in ("F", "U"):
            assert told["r"] == ready
            assert told["d"] == due + ("ro" in run and not phase and run["st"] != "queued")  # a deadline may come before the start
            assert told["ch"] == calling
            assert told["o"] == len(waiting)
            assert sorted(map(int, filter(None, run.get("wi", "").split(",")))) == waiting
            assert told["oa"] == sum(graph.nodes[index].kind is NodeKind.AGENT for index in waiting)
        self.count_idleness(run_id, run, told)
        if run["st"] == "paused" and phase == "U" and run.get("wy") == "step_failed":
            assert (told["r"], told["d"], told["a"]) == (0, 0, 0)

    def count_idleness(self, run_id: str, run: dict[str, str], told: dict[str, int]) -> None:
        still = told["r"] == told["a"] == told["d"] == told["ch"] == 0 and told["o"] > 0
        idle = run["st"] in ("running", "waiting_signal") and not run.get("ph") and still
        assert (run["st"] == "waiting_signal") == idle
        assert bool(run.get("is")) == idle
        assert (self.client.zscore(self.store.keys.of(0, "progress"), run_id) is None) == (idle or run["st"] == "queued")
        for tail in ("orphans", "orphans:due"):
            assert (self.client.zscore(self.store.keys.of(0, tail), run_id) is not None) == (idle and told["oa"] == told["o"])

    def count_items(self, each: dict[str, str], items: list[list[str]], key: str) -> None:
        assert int(each["cursor"]) == len(items) <= int(each["total"])
        assert int(each.get("active", 0)) == sum(item[0] == "X" for item in items)
        assert int(each.get("done", 0)) == sum(item[0] in "CZ" for item in items)
        assert int(each.get("failed", 0)) == sum(item[0] == "F" for item in items)
        assert int(each.get("again", 0)) == self.client.zcard(f"{key}:again") == sum(item[0] == "R" for item in items)

    def read_log(self, run_id: str, graph: Graph) -> None:
        entries = self.play.log(run_id)
        codes = "".join(entry[0] for entry in entries)
        assert codes.find("K") in (-1, len(codes) - 1), "something follows the cancel"
        for life in codes.split("g"):  # a retry is a new one
            assert life.count("e") + life.count("K") <= 1, "the run ended twice in one life"
        ended: set[str] = set()
        for entry in entries:
            code, _, *rest = entry.split(";")
            if code == "g":
                ended.clear()
            elif code in "czf" and (len(rest) < 3 or not rest[2]):
                assert rest[0] not in ended, f"step {rest[0]} ended twice"
                ended.add(rest[0])
        assert fold(parse_all(entries), graph).violations == []
