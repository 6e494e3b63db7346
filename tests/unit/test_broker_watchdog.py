"""When a worker is deaf, and when silence means nothing."""

from __future__ import annotations

from typing import Any

import pytest

from conductor.broker.watchdog import Ears, private_queue


def _ears(*looks: tuple[float, bool, bool], heard_at: float = 0.0) -> Ears:
    ears = Ears(heard_at=heard_at)
    for now, answers, saturated in looks:
        ears.look(now, broker_answers=answers, saturated=saturated)
    return ears


@pytest.mark.spec("REC-7")
def test_silence_counts_while_the_broker_answers_and_the_pool_has_room() -> None:
    assert _ears((0, True, False), (20, True, False), (40, True, False), (60, True, False)).deaf_for(60) == 60


@pytest.mark.spec("REC-7")
def test_a_message_ends_the_silence() -> None:
    assert _ears((0, True, False), (60, True, False), heard_at=50).deaf_for(60) == 10


@pytest.mark.spec("REC-7")
def test_silence_during_an_outage_of_the_broker_never_counts() -> None:
    assert _ears((0, True, False), (20, False, False)).deaf_for(500) == 0
    assert _ears((0, True, False), (20, False, False), (40, True, False)).deaf_for(60) == 20


@pytest.mark.spec("REC-7")
def test_silence_of_a_full_worker_never_counts() -> None:
    assert _ears((0, True, False), (20, True, True)).deaf_for(500) == 0
    assert _ears((0, True, True), (20, True, True), (40, True, False)).deaf_for(90) == 50


def test_the_private_queue_leaves_no_binding_and_expires() -> None:
    queue: Any = private_queue("conductor.pulse.x")
    assert queue.exchange.name == ""
    assert queue.expires == 3600
    assert queue.auto_delete
