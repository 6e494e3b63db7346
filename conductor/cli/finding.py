"""Which Celery app a command speaks for, found as `celery -A` finds it, or which service; and what the command needs of it.

Celery itself is not imported here: an app is known by its verbs, its Conductor by the name `conductor`.
"""

from __future__ import annotations

import importlib
import os
import shlex
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

import click

from conductor.cli.address import checked_url, read_token
from conductor.cli.broken import BrokenModule, broken, quiet_imports
from conductor.errors import BadInput, ConductorError, DeclarationError, UnknownWorkflow
from conductor.runs.words import Spelling

if TYPE_CHECKING:
    from conductor.cli.doors import Door
    from conductor.declare.workflow import Workflow
    from conductor.settings import Settings
    from conductor.wiring import Engine

__all__ = ["DEFAULT_APP", "Here", "find_app", "note"]

DEFAULT_APP = "workers"


def find_app(name: str) -> Any:
    """The app at `module`, `module:attribute` or `module.attribute`; a package may keep it in its module `celery`."""
    if (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)
    module_name, _, attribute = name.partition(":")
    module = _import(module_name)
    if module is None and not attribute and "." in module_name:
        module_name, _, attribute = module_name.rpartition(".")
        module = _import(module_name)
    if module is None:
        raise click.UsageError(f"no module {module_name!r} to take a Celery app from; name it with -A module, or set CELERY_APP")
    found = getattr(module, attribute, None) if attribute else _app_in(module)
    if not _is_app(found):
        raise click.UsageError(f"{name!r} has no Celery app; name it with -A module:attribute, or set CELERY_APP")
    return found


def _import(name: str) -> ModuleType | None:
    """The module; None if there is none of that name. An error inside it is the user's to see."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            return None
        raise


def _app_in(module: ModuleType) -> Any:
    for attribute in ("app", "celery"):
        if _is_app(found := getattr(module, attribute, None)):
            return found
    if hasattr(module, "__path__") and (inner := _import(f"{module.__name__}.celery")) is not None:
        return _app_in(inner)
    return next((value for value in vars(module).values() if _is_app(value)), None)


def _is_app(value: Any) -> bool:
    return hasattr(type(value), "send_task") and hasattr(type(value), "loader")


class Here:
    """One call of the command line: its app and engine, or the service at `url`, made when first asked for, and how it answers.

    `program` is how the user called us, with `-A` or `--url` if it was given there: what they are told to type next begins so. `app_given`
    says that somebody typed an app.
    """

    def __init__(self, name: str | None = None, app: Any = None, *, program: str = "conductor", app_given: bool = False) -> None:
        self.name = name
        self.program = self._called = program
        self.json = False
        self.traceback = False
        self.url = ""
        self.broken: BrokenModule | None = None
        self._app, self._app_given = app, app_given
        self._engine: Engine | None = None
        self._door: Door | None = None

    def point_at(self, url: str, *, given: bool) -> None:
        """Ask a service. `given` on the command line it stands in what is told to be typed next; a variable gives way to an app that was
        named there."""
        if given and self._app_given:
            raise click.UsageError("--url asks a service, -A the store itself: leave out one of them")
        if given or not self._app_given:
            self.url = checked_url(url)
            if given:
                self.program = f"{self._called} --url {shlex.quote(self.url)}"

    @property
    def door(self) -> Door:
        """What commands ask: the store itself, or the service."""
        if self._door is None:
            if self.url:
                from conductor.cli.doors.remote import Remote

                self._door = Remote(self, self.url, read_token())
            else:
                from conductor.cli.doors.direct import Direct

                self._door = Direct(self)
        return self._door

    def close(self) -> None:
        """Let go of the service."""
        if self._door is not None and self.url:
            self._door.close()

    def need_store(self, command: str) -> None:
        """Refuse over HTTP what only works on the store itself."""
        if self.url:
            raise click.UsageError(
                f"{command} works on the store itself, which no service does for it: leave out --url, unset CONDUCTOR_URL, and name the "
                "app with -A")

    @property
    def app_name(self) -> str:
        """What `-A` of another process gets."""
        return self.name or str(getattr(self._app, "main", None) or DEFAULT_APP)

    @property
    def spelling(self) -> Spelling:
        """How commands are written so that they can be pasted."""
        return Spelling(self.program, f"celery -A {shlex.quote(self.app_name)} worker")

    @property
    def app(self) -> Any:
        """The Celery app."""
        self.need_store("this")
        if self._app is None:
            if self.name is None and not _beside_us(DEFAULT_APP):
                raise click.UsageError("which app? name it as for celery: conductor -A module …, or set CELERY_APP=module")
            try:
                with quiet_imports():
                    self._app = find_app(self.app_name)
            except (click.ClickException, ConductorError) as error:
                if isinstance(error, DeclarationError):
                    raise broken(error) from error
                raise
            except Exception as error:
                raise broken(error) from error
        return self._app

    @property
    def conductor(self) -> Any:
        """The app's Conductor."""
        app = self.app
        if getattr(app, "conductor", None) is None:
            self._declare(app)
        if getattr(app, "conductor", None) is None:
            if self.broken is not None:
                raise self.broken
            raise click.UsageError(f"app {getattr(app, 'main', app)!r} has no Conductor; name another with -A, or add Conductor(app)")
        return app.conductor

    @property
    def declared(self) -> Mapping[str, Workflow[Any]]:
        """The workflows of the app; one whose module is broken may be missing, or half of it. Nothing is asked of the store."""
        from conductor.declare import registry

        self._declare(self.conductor.app)
        return registry.declared

    @property
    def engine(self) -> Engine:
        """The engine, with every workflow declared that can be. What needs code that is broken is refused; looking goes on without it."""
        if self._engine is None:
            conductor = self.conductor
            self._declare(conductor.app)
            if self.broken is not None:
                note(f"warning: {self.broken}; its workflows are not known here, `{self.program} check` looks again")
            self._engine = conductor.engine
        engine: Engine = self._engine
        return engine

    @property
    def store(self) -> tuple[str, Settings] | None:
        """Where the store is said to be, credentials masked, and by which settings; None before an engine was made."""
        return None if self._engine is None else (self._engine.store.url, self._engine.settings)

    def _declare(self, app: Any) -> None:
        """Workflows are declared when their modules are imported."""
        try:
            with quiet_imports():
                app.loader.import_default_modules()
        except Exception as error:
            self.broken = broken(error)

    def need_code(self) -> None:
        """Refuse what needs the user's code while a module of it is broken: half of a workflow may be declared."""
        _ = self.engine
        if self.broken is not None:
            raise self.broken

    def run_id(self, text: str) -> str:
        """The run that an id, the beginning of one, or the word `last` names."""
        return self._only(text, "run", "RUN")

    def operation_id(self, text: str) -> str:
        """The operation that an id, the beginning of one, `last`, or `RUN:STEP[:ITEM]` names."""
        named, colon, place = text.strip().partition(":")
        return f"{self.run_id(named)}:{place}" if colon else self._only(text, "operation", "OP")

    def _only(self, text: str, what: str, hint: str) -> str:
        try:
            found = self.door.runs_named(text) if what == "run" else self.door.operations_named(text)
        except BadInput as refused:
            raise click.BadParameter(refused.problem, param_hint=hint) from None
        if len(found) > 1:
            shown = f"{', '.join(found[:3])}{', …' if len(found) > 3 else ''}"
            raise click.BadParameter(f"{text!r} is the beginning of several {what} ids ({shown}); give more of it", param_hint=hint)
        return found[0]

    def workflow(self, name: str) -> Workflow[Any]:
        """A workflow that this process has declared."""
        self.need_code()
        flow = self.engine.workflows.get(name)
        if flow is None:
            raise UnknownWorkflow(workflow=name, known=self.known_workflows)
        return flow

    @property
    def known_workflows(self) -> str:
        return ", ".join(sorted(self.engine.workflows)) or "none"


def note(text: str) -> None:
    """For the person at the terminal, not for the pipe."""
    click.echo(text, err=True)


def _beside_us(name: str) -> bool:
    """Whether the directory we stand in has such a module: a script does not look there by itself."""
    return os.path.isdir(name) or os.path.isfile(f"{name}.py")
