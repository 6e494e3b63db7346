"""Tests of declaring may use any name: each begins with nothing declared, and what it declares is forgotten after it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from conductor.declare import registry


@pytest.fixture(autouse=True)
def own_registry(request: pytest.FixtureRequest) -> Iterator[None]:
    if "test_declare_" not in request.path.name:
        yield
        return
    with registry.isolated():
        yield
