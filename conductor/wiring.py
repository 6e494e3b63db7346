"""The one place where objects are built. Everything receives what it needs by keyword; nothing is global but the user's Celery app."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from conductor import codec
from conductor.archive.lazy import LazyArchive
from conductor.blobs import open_blobs
from conductor.declare.capability import Capability
from conductor.declare.context import Ctx
from conductor.declare.needs import Needs
from conductor.declare.workflow import Workflow
from conductor.operations import batches, built_in  # noqa: F401 - registers the capabilities that come along
from conductor.operations.call import call_in_step
from conductor.records import Poke
from conductor.runs.admission import Admission
from conductor.runs.announcing import AnnouncingStore
from conductor.settings import Settings
from conductor.store import Store, connect
from conductor.sweeps import built_in as built_in_runs  # noqa: F401 - the same, of runs

__all__ = ["Engine", "build_engine"]


@dataclass
class Engine:
    """What the use cases need: settings, the store, the declared workflows, and a way to poke workers."""

    settings: Settings
    store: Store
    workflows: Mapping[str, Workflow[Any]]
    poke: Callable[[Iterable[Poke]], None]
    default_queue: str = "celery"
    capabilities: Mapping[str, Capability[..., Any]] = field(default_factory=dict)
    needs: Needs = field(default_factory=Needs)
    archive: LazyArchive = field(default_factory=LazyArchive)

    @property
    def payload_limit(self) -> int:
        """How large one input or result may be."""
        return codec.size_limit(self.settings.max_payload_bytes)

    def call(self, ctx: Ctx, name: str, params: Mapping[str, Any]) -> Any:
        """`ctx.call`: what a step calls runs as an operation bound to its run."""
        return call_in_step(self, ctx, name, params)


def build_engine(
    settings: Settings, *, url: str, workflows: Mapping[str, Workflow[Any]], poke: Callable[[Iterable[Poke]], None],
    default_queue: str = "celery", capabilities: Mapping[str, Capability[..., Any]] | None = None,
) -> Engine:
    """An engine on the server at `url`. Nothing is connected yet."""
    if settings.blobs:
        codec.use_blobs(open_blobs(settings.blobs))
    store = AnnouncingStore(connect(url), namespace=settings.namespace, partitions=settings.partitions, url=url)
    store.offload_above = settings.blob_threshold_bytes
    store.lease_ms = int(settings.step_lease_seconds * 1000)
    store.admit = Admission(store, settings).check
    archive = LazyArchive(settings.archive_url, settings.namespace)
    return Engine(settings, store, workflows, poke, settings.default_queue or default_queue, capabilities or {}, archive=archive)
