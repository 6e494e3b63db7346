"""Where `Conductor(app)` finds workflows in a plain project: no Django, no list of packages."""

from __future__ import annotations

import importlib
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from conductor.declare import registry

APP = """
from celery import Celery
from conductor import Conductor
app = Celery({name!r}, broker="redis://127.0.0.1:1/0", set_as_current=False, include={include!r})
conductor = Conductor(app{more})
"""
FLOW = """
from conductor import Workflow
flow = Workflow({name!r})
@flow.step
def begin() -> int:
    return 1
"""


@pytest.fixture(autouse=True)
def _isolated() -> Iterator[None]:
    with registry.isolated():
        yield


Write = Callable[[dict[str, str]], None]


@pytest.fixture
def shop() -> str:
    """A package name that no other test has."""
    return f"shop_{uuid.uuid4().hex[:8]}"


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Write files of a project into a directory that Python looks into; what was imported from there is forgotten."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def files(texts: dict[str, str]) -> None:
        for name, text in texts.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        importlib.invalidate_caches()

    yield files
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


def app_in(module: str) -> Any:
    return importlib.import_module(module).app


def app_text(name: str, include: tuple[str, ...] = (), more: str = "") -> str:
    return APP.format(name=name, include=list(include), more=more)


def declared_by(app: Any) -> set[str]:
    app.loader.import_default_modules()
    return set(registry.declared)


@pytest.mark.spec("WF-11")
@pytest.mark.parametrize("module", ["__init__", "celery", "app"])
def test_workflows_beside_the_app_are_found_in_a_plain_package(write: Write, shop: str, module: str) -> None:
    write({f"{shop}/__init__.py": "", f"{shop}/workflows.py": FLOW.format(name="order")} | {f"{shop}/{module}.py": app_text("x-1")})
    assert declared_by(app_in(shop if module == "__init__" else f"{shop}.{module}")) == {"order"}


@pytest.mark.spec("WF-11")
def test_workflows_of_the_package_above_of_the_apps_name_and_of_included_modules_are_found(write: Write, shop: str) -> None:
    write({
        f"{shop}/__init__.py": "", f"{shop}/workflows.py": FLOW.format(name="above"), f"{shop}/conf/__init__.py": "",
        f"{shop}/conf/celery.py": app_text(f"{shop}_named", (f"{shop}.orders.tasks",)),
        f"{shop}_named/__init__.py": "", f"{shop}_named/workflows.py": FLOW.format(name="named"),
        f"{shop}/orders/__init__.py": "", f"{shop}/orders/tasks.py": "", f"{shop}/orders/workflows.py": FLOW.format(name="included"),
    })
    assert declared_by(app_in(f"{shop}.conf.celery")) == {"above", "named", "included"}


@pytest.mark.spec("WF-11")
def test_workflows_beside_a_plain_module_are_found(write: Write, shop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "workflows", raising=False)
    write({f"{shop}.py": app_text("x-2"), "workflows.py": FLOW.format(name="beside")})
    assert declared_by(app_in(shop)) == {"beside"}


@pytest.mark.spec("WF-11")
def test_a_module_called_workflows_that_lies_elsewhere_is_left_alone(
    write: Write, shop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "workflows", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path / "elsewhere"))
    write({f"{shop}.py": app_text("x-3"), "elsewhere/workflows.py": FLOW.format(name="foreign")})
    assert declared_by(app_in(shop)) == set()


@pytest.mark.spec("WF-11")
def test_no_workflows_module_is_nothing_wrong_but_an_error_inside_one_is_told(write: Write, shop: str) -> None:
    write({f"{shop}/__init__.py": app_text("x-4")})
    app = app_in(shop)
    assert declared_by(app) == set()
    write({f"{shop}/workflows.py": "import no_such_module_at_all"})
    with pytest.raises(ModuleNotFoundError, match="no_such_module_at_all"):
        app.loader.import_default_modules()


@pytest.mark.spec("WF-11")
def test_a_list_of_packages_looks_there_and_nowhere_else(write: Write, shop: str) -> None:
    write({
        f"{shop}/__init__.py": app_text("x-5", more=f", autodiscover=['{shop}.orders']"), f"{shop}/workflows.py": FLOW.format(name="own"),
        f"{shop}/orders/__init__.py": "", f"{shop}/orders/workflows.py": FLOW.format(name="order"),
    })
    assert declared_by(app_in(shop)) == {"order"}
