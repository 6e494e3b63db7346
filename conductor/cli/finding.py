"""Which Celery app a command speaks for, found as `celery -A` finds it, and what the command needs of it.

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

from conductor.cli.broken import BrokenModule, broken, quiet_imports
from conductor.errors import ConductorError, DeclarationError, UnknownRun, UnknownWorkflow

if TYPE_CHECKING:
    from conductor.declare.workflow import Workflow
    from conductor.runs.why import Spelling
    from conductor.settings import Settings
    from conductor.wiring import Engine

__all__ = ["DEFAULT_APP", "Here", "find_app", "note"]

DEFAULT_APP = "workers"
_NEWEST = "last"


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
    """One call of the command line: its app and engine, made when first asked for, and how it answers.

    `program` is how the user called us, with `-A` if it was given there: what they are told to type next begins so.
    """

    def __init__(self, name: str | None = None, app: Any = None, *, program: str = "conductor") -> None:
        self.name = name
        self.program = program
        self.json = False
        self.traceback = False
        self.broken: BrokenModule | None = None
        self._app = app
        self._engine: Engine | None = None

    @property
    def app_name(self) -> str:
        """What `-A` of another process gets."""
        return self.name or str(getattr(self._app, "main", None) or DEFAULT_APP)

    @property
    def spelling(self) -> Spelling:
        """How commands are written so that they can be pasted."""
        from conductor.runs.why import Spelling

        return Spelling(self.program, f"celery -A {shlex.quote(self.app_name)} worker")

    @property
    def app(self) -> Any:
        """The Celery app."""
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
        from conductor.store.listing import find_run_by_prefix, list_runs

        store = self.engine.store
        if text == _NEWEST:
            newest = list_runs(store, limit=1).runs
            found = newest[0].run_id if newest else None
        else:
            try:
                found = find_run_by_prefix(store, text) or self._archived_id(text)
            except ValueError as problem:
                raise click.BadParameter(str(problem), param_hint="RUN") from None
        if found is None:
            raise UnknownRun(run_id=text, namespace=store.namespace)
        return found

    def _archived_id(self, text: str) -> str | None:
        """The run that only the archive has under an id, or the beginning of one."""
        from conductor.archive import ArchiveFilter
        from conductor.ids import is_run_id
        from conductor.store.stubs import read_stub

        if is_run_id(text) and read_stub(self.engine.store, text) is not None:
            return text
        if not self.engine.archive.configured:
            return None
        from conductor.store.listing import Ambiguous

        found = self.engine.archive.open().search(ArchiveFilter(run_id_prefix=text.strip().lower()), limit=4).runs
        if len(found) > 1:
            raise Ambiguous(text, [run.run_id for run in found])
        return found[0].run_id if found else None

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
