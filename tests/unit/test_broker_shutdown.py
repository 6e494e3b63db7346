"""The shared page: what a parent tells its pool children without a message."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from conductor.broker import shutdown
from tests.support.waiting import eventually


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    shutdown.reset()
    yield
    shutdown.reset()


@pytest.mark.spec("RUN-13")
def test_a_child_forked_before_sees_that_its_parent_was_told_to_stop() -> None:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        eventually(shutdown.stopping, 10)
        os.write(write, b"seen" if shutdown.stopping_for() < 5 else b"old")
        os._exit(0)
    assert not shutdown.stopping()
    shutdown.begin()
    os.waitpid(child, 0)
    assert os.read(read, 10) == b"seen"


def test_the_first_word_counts() -> None:
    assert shutdown.stopping_for() == 0.0
    shutdown.begin()
    eventually(lambda: shutdown.stopping_for() > 0.05)
    shutdown.begin(sig="SIGTERM", how="Warm")
    assert shutdown.stopping_for() > 0.05


def test_events_are_wanted_or_not() -> None:
    assert not shutdown.events_wanted()
    shutdown.set_events_wanted(True)
    assert shutdown.events_wanted()
    assert not shutdown.stopping()


@pytest.mark.spec("RUN-13")
def test_the_page_is_marked_before_the_handler_that_was_there() -> None:
    seen: list[bool] = []
    before = signal.signal(signal.SIGQUIT, lambda number, frame: seen.append(shutdown.stopping()))
    others = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        shutdown.stand_before_signals()
        shutdown.stand_before_signals()  # twice is once
        os.kill(os.getpid(), signal.SIGQUIT)
        eventually(lambda: seen)
        assert seen == [True]
    finally:
        signal.signal(signal.SIGQUIT, before)
        for number, handler in others.items():
            signal.signal(number, handler)
