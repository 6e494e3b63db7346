"""The service against its own document, for long: thousands of requests that fit it and that do not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.front import Front
from tests.integration.front import opened as open_front
from tests.integration.test_service_schema import campaign_on
from tests.support.schema import operations
from tests.support.server import ValkeyServer

pytestmark = [pytest.mark.faults, pytest.mark.spec("SVC-1", "SVC-2", "BAD-1")]


@pytest.fixture
def front(valkey: ValkeyServer, namespace: str) -> Iterator[Front]:
    with open_front(valkey, namespace) as one:
        yield one


@pytest.mark.timeout(3600)
def test_thousands_of_requests_by_the_document(front: Front, seed: int) -> None:
    campaign = campaign_on(front)
    for operation in operations(campaign.app):
        campaign.ask(operation, 300, seed)
    assert sum(campaign.statuses.values()) > 10_000
