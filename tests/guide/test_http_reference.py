"""The page about the HTTP interface is made from the schema, so it cannot say what is not so."""

from __future__ import annotations

import re

import pytest
from celery import Celery

from conductor import Conductor, errors
from conductor.service import asgi
from conductor.service import errors as refusals
from conductor.service.app import Service
from conductor.service.reference import PAGE, write


@pytest.fixture(scope="module")
def app() -> Service:
    nowhere = "redis://127.0.0.1:1/0"
    return asgi(Conductor(Celery("reference", broker=nowhere), redis_url=nowhere))


@pytest.mark.spec("SVC-1")
def test_the_reference_is_what_the_routes_say(app: Service) -> None:
    assert write(app) == PAGE.read_text(), "make it anew: python -m ops.reference"


@pytest.mark.spec("SVC-2")
def test_every_code_that_the_page_names_has_the_status_that_it_gives_it() -> None:
    known = {found.code: found for module in (errors, refusals) for found in vars(module).values() if isinstance(found, type) and hasattr(found, "code")}
    told = re.findall(r"^\| ([\d, ]+) \| ([^|]+) \|", PAGE.read_text(), re.MULTILINE)
    assert len(told) == 6
    for statuses, codes in told:
        for code in re.findall(r"`(\w+)`", codes):
            assert str(refusals.status_of(known[code]())) in statuses, code
