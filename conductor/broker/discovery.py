"""Where workflows may lie in a project that is not Django's: in the package that holds the app, and beside the modules it includes.

Only names are found here; Celery imports `<package>.workflows` for each of them. A module that is not there is nothing wrong; an error
inside one is raised.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from celery import Celery

__all__ = ["module_beside", "own_packages"]


def own_packages(app: Celery, home: Mapping[str, Any]) -> list[str]:
    """The packages of the app: that of the module with the globals `home` and those above it, that of the app's name, those it includes."""
    included = [module for setting in (app.conf.imports, app.conf.include) for module in _listed(setting)]
    named = [name for name in (str(app.main or ""), *included) if _is_package(name)]
    found = [*_with_those_above(str(home.get("__package__") or "")), *named, *(module.rpartition(".")[0] for module in included)]
    return list(dict.fromkeys(name for name in found if name))


def module_beside(home: Mapping[str, Any], name: str) -> list[str]:
    """The module `name` in the directory of a plain module, which belongs to no package; not one of that name from elsewhere."""
    file = home.get("__file__")
    if home.get("__package__") or home.get("__name__") == "__main__" or not file:
        return []
    found = importlib.util.find_spec(name)
    places = [] if found is None else [found.origin, *(found.submodule_search_locations or ())]
    return [name] if any(place and Path(place).resolve().parent == Path(file).resolve().parent for place in places) else []


def _listed(setting: Any) -> list[str]:
    return [setting] if isinstance(setting, str) else [str(one) for one in setting or ()]


def _with_those_above(package: str) -> Iterator[str]:
    while package:
        yield package
        package = package.rpartition(".")[0]


def _is_package(name: str) -> bool:
    try:
        found = importlib.util.find_spec(name)
    except (ModuleNotFoundError, ValueError):  # no such parent, or a name such as `__main__`
        return False
    return found is not None and found.submodule_search_locations is not None
