"""What `Workflow` will offer in later releases. Each name exists, so that using it says what is missing instead of `AttributeError`."""

from __future__ import annotations

from typing import Any, NoReturn

from conductor.errors import NotAvailableYet

__all__ = ["Later"]


class Later:
    """Refuses by name."""

    name: str


    def task(self, *_given: Any, **_options: Any) -> NoReturn:
        """Take an existing Celery task as a step."""
        raise NotAvailableYet(where=self.name, what="flow.task (a Celery task as a step)")

    def start_many(self, *_given: Any, **_options: Any) -> NoReturn:
        """Start many runs at once."""
        raise NotAvailableYet(where=self.name, what="flow.start_many (many starts at once)")

    def adelay(self, *_given: Any, **_options: Any) -> NoReturn:
        """Start a run from async code."""
        raise NotAvailableYet(where=self.name, what="flow.adelay (starting from async code)")

    def run_local(self, *_given: Any, **_options: Any) -> NoReturn:
        """Run the graph without a store."""
        raise NotAvailableYet(where=self.name, what="flow.run_local (running without a store)")

    @classmethod
    def from_canvas(cls, name: str, *_given: Any, **_options: Any) -> NoReturn:
        """Convert a Celery canvas."""
        raise NotAvailableYet(where=name, what="Workflow.from_canvas (converting a canvas)")
