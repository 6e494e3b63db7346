"""One model of all settings. Each value knows where it came from, so that `conductor doctor` and every error can say it.

Sources, the first that has a value wins: code, environment (`CONDUCTOR_*`), `.env`, `app.conf` (`conductor_*`, in Django
`CELERY_CONDUCTOR_*`), default. An unknown `conductor_*` in `app.conf` is an error, because a misspelt setting would silently stay at its
default; in the environment it is only reported, because others may use the prefix too. An empty variable counts as not set.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Literal, Self

from pydantic import Field, PrivateAttr, ValidationError
from pydantic_settings import BaseSettings, DotEnvSettingsSource, EnvSettingsSource, SettingsConfigDict

from conductor.errors import SettingsError
from conductor.locations import EMBEDDED, broker_problem, is_redis, masked, native

__all__ = ["Durability", "Settings", "unknown_variables"]

Durability = Literal["always", "everysec", "replicated", "none"]

_PREFIX: Final = "conductor_"
_OTHER_VARIABLES = frozenset({"CONDUCTOR_FAILPOINTS", "CONDUCTOR_FAILPOINTS_LEDGER", "CONDUCTOR_TOKEN", "CONDUCTOR_URL"})
_SECRETS = frozenset({"redis_url", "archive_url"})
_HIDDEN = frozenset({"notify", "notify_secret"})  # tokens stand anywhere in such URLs, so only their scheme is shown
_STATE_REMEDY = (
    "set conductor_redis_url in app.conf, or CONDUCTOR_REDIS_URL, to a Redis or Valkey that keeps its data (redis://host:6379/0), "
    'or to "embedded" to try it out'
)
_BROKER_REMEDY = (
    "set broker_url (CELERY_BROKER_URL) to a server of its own (redis://host:6379/0, or RabbitMQ) and conductor_redis_url to the cluster "
    "(redis+cluster://one:7000,two:7000)"
)
_NAMESPACE = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"  # no colon and no brace: it stands inside a key's hash tag


class Settings(BaseSettings):
    """Everything that can be set. Names ending in `_seconds` are durations."""

    model_config = SettingsConfigDict(
        env_prefix="CONDUCTOR_", env_ignore_empty=True, extra="ignore", frozen=True, allow_inf_nan=False, hide_input_in_errors=True
    )

    namespace: str = Field("conductor", pattern=_NAMESPACE, description="stands in every key, poke and metric; default: the app's name")
    redis_url: str | None = Field(None, min_length=1, description="where the state is; `embedded` for the Valkey that comes along")
    embedded_directory: Path = Field(Path(".conductor"), description="files of the embedded server")
    partitions: int = Field(16, ge=1, le=256, description="fixed when the store is made")
    durability: Durability | None = Field(None, description="the level you accept; `replicated` and `none` must be named to start")
    default_queue: str | None = Field(None, min_length=1, description="queue of steps that name none; default: the app's")
    sweeps_queue: str = Field("conductor.sweeps", min_length=1, description="queue of the sweeps, apart from steps")

    step_lease_seconds: float = Field(15, ge=1, le=86_400, description="how long a claim of a step that names no lease holds")
    heartbeat_seconds: float = Field(5, ge=0.1, le=3600, description="how often a worker renews its leases")
    stall_sweep_seconds: float = Field(2, ge=0.1, le=3600, description="how often lost leases and unclaimed steps are looked for")
    stale_after_seconds: float = Field(600, ge=1, description="a run without progress for so long is mended if nothing could move it")
    stuck_sweep_seconds: float = Field(60, ge=1, le=86_400, description="how often such runs are looked for")
    due_sweep_seconds: float = Field(0.5, ge=0.05, le=3600, description="how often due retries and timers are looked for")
    retention_sweep_seconds: float = Field(60, ge=1, le=86_400, description="how often finished runs are deleted")
    watchdog_seconds: float = Field(20, ge=1, le=3600, description="how often a worker sends itself a message")
    watchdog_deaf_seconds: float = Field(60, ge=2, le=86_400, description="without such a message for so long it restarts itself")
    liveness_file: Path | None = Field(None, description="touched by the watchdog, for supervisors")

    drain_seconds: float = Field(0.25, ge=0.01, le=60, description="a worker yields to the broker after so long")
    drain_steps: int = Field(1000, ge=1, le=1_000_000, description="or after so many steps")
    default_step_timeout: float | None = Field(None, gt=0, description="seconds; default: Celery's time limit, if one is set")
    verify_seconds: float = Field(30, gt=0, le=3600, description="an effect whose verifiers took longer cannot be judged")
    poison_losses: int = Field(3, ge=1, le=100, description="a step that kills so many workers fails as `poison`")
    code_missing_minutes: float = Field(10, gt=0, description="then a run whose code no worker has is paused")
    max_payload_bytes: int = Field(1_048_576, ge=1024, le=67_108_864, description="limit of one input or result")

    idle_timeout_hours: float = Field(24, ge=0, le=87_600, description="a run that waits for agents alone is cancelled then; 0: never")
    sweep_interval_minutes: float = Field(60, gt=0, le=10_080, description="how often such runs are looked for")
    retention_completed_seconds: float = Field(86_400, ge=0, description="how long a completed or cancelled run is kept")
    retention_failed_seconds: float = Field(604_800, ge=0, description="how long a failed run is kept")
    notify: str = Field("log:", description="surfaces told of exhausted retries, separated by blanks: log:, webhook+https://…, apprise:…")
    notify_secret: str | None = Field(None, min_length=16, description="signs webhooks")
    notify_allow_private: bool = Field(False, description="let webhooks reach addresses that are not public")
    schedule_sweep_seconds: float = Field(1, ge=0.1, le=3600, description="how often due schedules are looked for")
    outbox_sweep_seconds: float = Field(0.5, ge=0.05, le=3600, description="how often ends of operations that are owed are told")

    key_retention_days: float = Field(7, ge=0, description="how long an idempotency key outlives its run")

    archive_url: str | None = Field(None, min_length=1, description="SQL for finished and parked runs: sqlite:////path/x.db, postgresql://…")
    archive_retention_days: float = Field(90, ge=0, description="how long the archive keeps a run after its retention in the store")
    archive_sweep_seconds: float = Field(30, ge=0.05, le=86_400, description="how often finished runs are moved to the archive")
    park_after_minutes: float = Field(15, ge=0, description="an idle run leaves the store's memory after so long; needs an archive")
    parked_sweep_seconds: float = Field(1, ge=0.05, le=3600, description="how often runs are parked and woken")
    checkpoint_seconds: float = Field(1, ge=0.05, le=3600, description="how often what changed is copied to the archive")
    recovery_enabled: bool = Field(True, description="let workers look for runs to recover when they start")
    blobs: Any = Field(None, description="store of large values: file:///directory, or an object with put, get and delete")
    blob_threshold_bytes: int = Field(65_536, ge=1024, description="a larger value goes to the blob store, where there is one")

    service_host: str = Field("127.0.0.1", min_length=1, description="where `conductor serve` listens; off loopback only with a token")
    service_port: int = Field(8440, ge=0, le=65_535, description="its port; 0: any free one")
    service_max_body_bytes: int = Field(2_097_152, ge=1024, le=134_217_728, description="limit of one request's body")
    service_body_seconds: float = Field(10, ge=0.05, le=600, description="how long a request's head, and then its body, may take to arrive")
    service_max_connections: int = Field(1000, ge=1, le=100_000, description="more are answered 503")
    service_trusted_proxies: str = Field("", description="addresses whose X-Forwarded-For and -Proto count, separated by commas")
    service_login_hours: float = Field(12, gt=0, le=720, description="how long a browser stays logged in")
    stream_heartbeat_seconds: float = Field(15, ge=0.05, le=300, description="a stream of events that says nothing says so, so often")
    stream_idle_seconds: float = Field(3600, ge=0.1, description="a stream without an event for so long is closed; its reader comes back")
    stream_check_seconds: float = Field(15, ge=0.05, le=3600, description="how often a stream asks whether its reader may still read")
    stream_send_seconds: float = Field(30, ge=0.1, le=3600, description="a reader that takes nothing for so long is dropped")
    streams_per_caller: int = Field(100, ge=1, le=100_000, description="streams of events that one caller may have open in one process")
    streams_total: int = Field(800, ge=1, le=100_000, description="streams of events that one process serves; fewer than its connections")

    _sources: dict[str, str] = PrivateAttr(default_factory=dict)

    @classmethod
    def load(
        cls, conf: Mapping[str, Any] | None = None, *, app_name: str | None = None, env_file: str | Path | None = ".env", **code: Any
    ) -> Self:
        """Read all sources. `conf` is the app's configuration, `app_name` gives the default of the namespace, `code` what a program set."""
        values: dict[str, Any] = {}
        sources: dict[str, str] = {}
        for place, found in (  # the weakest first
            ("app.conf", _from_conf(cls, conf or {})),
            (str(env_file), DotEnvSettingsSource(cls, env_file=env_file)()),
            ("environment", EnvSettingsSource(cls)()),
            ("code", _known(cls, code, spelled="{}")),
        ):
            present = {name: value for name, value in found.items() if name in cls.model_fields and value is not None}
            values |= present
            sources |= {name: _source(place, name) for name in present}
        if "namespace" not in values and (name := _named_after(app_name)):
            values["namespace"], sources["namespace"] = name, "default: the app's name"
        return cls._checked(values, sources)

    @classmethod
    def _checked(cls, values: dict[str, Any], sources: dict[str, str]) -> Self:
        try:
            settings = cls.model_validate(values)
        except ValidationError as error:
            raise _first_problem(error, values, sources) from None
        settings._sources.update(sources)
        settings._check_together()
        return settings

    @classmethod
    def settings_customise_sources(cls, settings_cls: type[BaseSettings], init_settings: Any, **others: Any) -> tuple[Any, ...]:  # type: ignore[override]
        """Only what is passed in: `load` is the one place that reads the outside, so `Settings()` in a test is all defaults."""
        return (init_settings,)

    @property
    def sources(self) -> dict[str, str]:
        """Where each value came from, by name."""
        return {name: self.source(name) for name in type(self).model_fields}

    def source(self, name: str) -> str:
        """Where one value came from: `environment CONDUCTOR_REDIS_URL`, `app.conf conductor_redis_url`, `code`, `default`, …"""
        return self._sources.get(name, "default")

    def describe(self) -> list[tuple[str, str, str]]:
        """Name, value and source of every setting, in the order of the model, credentials masked."""
        return [(name, self._shown(name), self.source(name)) for name in type(self).model_fields]

    def _shown(self, name: str) -> str:
        value = getattr(self, name)
        if value is None:
            return "-"
        if name in _HIDDEN:
            return _hidden(str(value))
        return masked(str(value)) if name in _SECRETS else str(value)

    def state_url(self, broker_url: str | None, *, ready_made: bool) -> str:
        """Where the state is: the setting, else the app's own broker if it is Redis, else `embedded` in the ready-made app only.

        `REDIS_URL` is never looked at: it usually names a cache, which may evict.
        """
        if self.redis_url is not None:
            url, source = self.redis_url, self.source("redis_url")
        elif broker_url and is_redis(broker_url):
            url, source = broker_url, "broker_url of the Celery app"
        elif ready_made:
            return EMBEDDED
        else:
            broker = f"the broker is {masked(broker_url)}, not Redis" if broker_url else "the app has no broker_url"
            raise _refusal("redis_url", None, "default", f"it is not set and {broker}, so nobody knows where the state is", _STATE_REMEDY)
        if broker_url and (problem := broker_problem(url, broker_url)):
            raise _refusal("redis_url", url, source, f"the broker is {masked(broker_url)}: {problem}", _BROKER_REMEDY)
        try:
            return native(url)
        except ValueError as error:
            raise _refusal("redis_url", url, source, str(error), _STATE_REMEDY) from None

    def _check_together(self) -> None:
        """Values that are fine alone and wrong together."""
        if self.step_lease_seconds <= 2 * self.heartbeat_seconds:
            self._refuse(
                "step_lease_seconds",
                f"a lease must outlast two heartbeats of {self.heartbeat_seconds:g} s ({self.source('heartbeat_seconds')})",
                f"raise conductor_step_lease_seconds above {2 * self.heartbeat_seconds:g} or lower conductor_heartbeat_seconds",
            )
        if self.watchdog_deaf_seconds < 2 * self.watchdog_seconds:
            self._refuse(
                "watchdog_deaf_seconds",
                f"one late message would restart the worker (conductor_watchdog_seconds is {self.watchdog_seconds:g})",
                f"set it to {2 * self.watchdog_seconds:g} or more",
            )
        if self.default_queue == self.sweeps_queue:
            self._refuse("sweeps_queue", "steps and sweeps in one queue would wait for each other", "give the sweeps a queue of their own")

    def _refuse(self, name: str, problem: str, remedy: str) -> None:
        raise _refusal(name, getattr(self, name), self.source(name), problem, remedy)


def _hidden(value: str) -> str:
    """What may be seen of a secret: the scheme of a URL, nothing of anything else."""
    return " ".join(part if part.endswith(":") else f"{part.partition(':')[0]}:***" if ":" in part else "***" for part in value.split())


def unknown_variables(environ: Mapping[str, str] | None = None) -> list[str]:
    """Variables with our prefix that set nothing, each with the nearest name that would."""
    known = {f"CONDUCTOR_{name.upper()}" for name in Settings.model_fields}
    strangers = sorted(
        name for name in (os.environ if environ is None else environ)
        if name.upper().startswith("CONDUCTOR_") and name.upper() not in known | _OTHER_VARIABLES
    )
    return [name + _nearest(name.upper(), known) for name in strangers]


def _source(place: str, name: str) -> str:
    if place == "code":
        return place
    return f"app.conf {_PREFIX}{name}" if place == "app.conf" else f"{place} CONDUCTOR_{name.upper()}"


def _named_after(app_name: str | None) -> str:
    """The namespace that an app's name gives. `__main__` is refused: a script and its workers would live in two namespaces."""
    if app_name == "__main__":
        remedy = 'name the app, as in Celery("shop"), or set conductor_namespace'
        raise _refusal("namespace", app_name, "the app's name", "the same file has another name when a worker imports it", remedy)
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", app_name or "").strip("-_.")[:64]


def _from_conf(cls: type[Settings], conf: Mapping[str, Any]) -> dict[str, Any]:
    """What an app's configuration says. With Celery's `namespace=` keys keep their prefix when listed and lose it when asked for."""
    listed: dict[str, Any] = {}
    for key in list(conf):
        name = str(key).lower().removeprefix("celery_")
        if name.startswith(_PREFIX):
            listed[name.removeprefix(_PREFIX)] = conf[key]
    asked = {name: conf[_PREFIX + name] for name in cls.model_fields if _PREFIX + name in conf}
    return _known(cls, listed, spelled=_PREFIX + "{}") | asked


def _known(cls: type[Settings], values: Mapping[str, Any], *, spelled: str) -> dict[str, Any]:
    for name in values:
        if name not in cls.model_fields:
            near = _nearest(spelled.format(name), [spelled.format(known) for known in cls.model_fields])
            raise SettingsError(
                setting=spelled.format(name), value=values[name], source="app.conf" if _PREFIX in spelled else "code",
                remedy="correct or remove it", problem=f"there is no such setting{near}; correct or remove it",
            )
    return dict(values)


def _nearest(name: str, known: Iterable[str]) -> str:
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f" (did you mean {found[0]}?)" if found else ""


def _first_problem(error: ValidationError, values: Mapping[str, Any], sources: Mapping[str, str]) -> SettingsError:
    """The first wrong value as an error of ours; the others show when it is mended."""
    first = error.errors()[0]
    name = str(first["loc"][0]) if first["loc"] else "?"
    field = Settings.model_fields.get(name)
    meaning = f" ({field.description})" if field and field.description else ""
    message = first["msg"][:1].lower() + first["msg"][1:]
    return _refusal(name, values.get(name), sources.get(name, "default"), message, f"set conductor_{name} to a value that fits{meaning}")


def _refusal(name: str, value: Any, source: str, problem: str, remedy: str) -> SettingsError:
    shown = masked(value) if name in _SECRETS and isinstance(value, str) else "***" if name in _HIDDEN else repr(value)
    return SettingsError(
        setting=f"{_PREFIX}{name}", value=shown, source=source, remedy=remedy, problem=f"{shown} ({source}): {problem}; {remedy}",
    )
