"""The same crash points in real workers: prefork pool, broker, timer and all. Fewer of them, because each case starts two workers."""

from __future__ import annotations

import pytest

from tests.support.site import Site
from tests.support.waiting import eventually

SHORT = ("commit.sent", "poke.before")
LONG = (
    "claim.before", "claim.sent", "commit.before", "body.before", "body.after", "drain.begin", "drain.end", "poke.sent", "register.sent",
    "fire_due.before", "fire_due.sent", "sweep.begin", "sweep.end", "heartbeat.sent", "note.sent",
)
QUICK = {"TEST_LEASE_SECONDS": "2", "CONDUCTOR_HEARTBEAT_SECONDS": "0.5", "CONDUCTOR_STALL_SWEEP_SECONDS": "0.5"}


@pytest.mark.spec("RUN-1", "RUN-2", "RUN-3", "RUN-6")
@pytest.mark.parametrize("site", [QUICK], indirect=True)
@pytest.mark.parametrize("point", [*SHORT, *(pytest.param(point, marks=pytest.mark.faults) for point in LONG)])
def test_a_worker_killed_there_is_followed_by_another(site: Site, point: str) -> None:
    strikes = site.ledger.directory / "strikes"
    # A quick worker finds nearly everything without being poked, so its first poke may be its last one.
    nth = 1 if point.startswith("poke.") else 2
    armed = {"CONDUCTOR_FAILPOINTS": f"{point}=kill@{nth}", "CONDUCTOR_FAILPOINTS_LEDGER": str(strikes)}
    struck = site.worker(env=armed, concurrency=1, wait=False)
    for number, workflow in enumerate(("chain", "diamond", "fan", "timed", "long")):
        site.start(workflow, number, hold=0.8 if workflow == "long" else 0)
    eventually(strikes.exists, 30, what=lambda: f"{point} is passed\n{site.processes.logs()}")
    struck.kill_whole()  # the pool would replace its child, and the new one would be armed again
    site.worker(concurrency=2)
    site.wait_for_all(60)
    assert point in strikes.read_text()
    site.verdict()
