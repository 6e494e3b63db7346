"""The scripts as text: headers, names, sizes, and that the store calls each of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import conductor.store
from conductor import failpoints
from conductor.state import StepState
from conductor.store import scripts

_STORE = Path(conductor.store.__file__).parent
_LUA = _STORE / "lua"
_FILES = sorted(_LUA.rglob("*.lua"))
_FRAGMENTS = {path.stem: path for path in (_LUA / "fragments").glob("*.lua")}
_TOP_LOCAL = re.compile(r"^local (function )?([\w, ]+)", re.MULTILINE)


def top_locals(text: str) -> set[str]:
    """Names that a file declares at its outermost level."""
    return {name.strip() for _, names in _TOP_LOCAL.findall(text) for name in names.split(",") if name.strip()}


def header(name: str) -> dict[str, str]:
    return dict(re.findall(r"^--! (\w+): (.*)$", (_LUA / f"{name}.lua").read_text(), re.MULTILINE))


@pytest.fixture(params=scripts.names())
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_the_header_says_arguments_fragments_and_result(name: str) -> None:
    said = header(name)
    assert set(said) == {"args", "use", "result"}
    assert said["args"].split()
    assert said["result"].strip()
    assert set(said["use"].split()) <= set(_FRAGMENTS)


def test_the_first_line_says_what_the_script_is_for(name: str) -> None:
    assert (_LUA / f"{name}.lua").read_text().startswith(f"-- {name}: ")


def test_the_store_has_a_method_that_calls_it(name: str) -> None:
    python = "\n".join(path.read_text() for path in _STORE.glob("*.py"))
    assert re.search(rf'_call(_bare)?\(\s*"{name}"', python)


@pytest.mark.spec("RUN-5")
def test_only_scripts_with_a_token_are_called_under_a_number(name: str) -> None:
    python = "\n".join(path.read_text() for path in _STORE.glob("*.py"))
    numbered = re.search(rf'_call\(\s*"{name}"', python) is not None
    assert numbered == ("token" in header(name)["use"].split()) == (header(name)["args"].split()[:2] == ["caller", "number"])


def test_no_fragment_hides_an_argument(name: str) -> None:
    said = header(name)
    arguments = set(said["args"].split())
    for fragment in said["use"].split():
        assert not arguments & top_locals(_FRAGMENTS[fragment].read_text()), fragment


def test_no_fragment_hides_a_name_of_an_earlier_one(name: str) -> None:
    seen: dict[str, str] = {}
    for fragment in header(name)["use"].split():
        for found in top_locals(_FRAGMENTS[fragment].read_text()):
            assert found not in seen, f"{fragment} declares {found}, which {seen[found]} has declared"
            seen[found] = fragment


def test_a_script_stays_below_the_limit_of_local_names(name: str) -> None:
    script = scripts.load(name)
    assert len(re.findall(r"^local ", script.plain, re.MULTILINE)) + len(script.args) < 180


def test_arguments_are_named_once(name: str) -> None:
    names = header(name)["args"].split()
    assert len(set(names)) == len(names)
    assert scripts.load(name).args == tuple(names)


@pytest.mark.parametrize("path", _FILES, ids=lambda path: path.stem)
def test_keys_are_built_from_the_partition_only(path: Path) -> None:
    code = re.sub(r"--.*", "", path.read_text())
    assert ("KEYS[" in code) == (path.stem == "partition")


@pytest.mark.parametrize("path", _FILES, ids=lambda path: path.stem)
def test_a_file_is_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 120


def test_every_fragment_is_used() -> None:
    assert {fragment for one in scripts.names() for fragment in header(one)["use"].split()} == set(_FRAGMENTS)


def test_every_script_has_failpoints(name: str) -> None:
    assert name in failpoints.CALLS
    assert {f"{name}.before", f"{name}.sent"} <= failpoints.NAMES


def test_state_letters_come_from_the_table(name: str) -> None:
    text = scripts.load(name).plain
    for state in StepState:
        if state is not StepState.CANCELLED:
            declared = f"local {state.name} = '{state.letter}'"
            assert (declared in text) == (re.search(rf"\b{state.name}\b", text.replace(declared, "")) is not None)


def test_only_a_start_is_refused_by_a_full_server(name: str) -> None:
    script = scripts.load(name)
    assert ("allow-oom" in script.text.splitlines()[0]) == (name != "start_run")
    assert script.sha != script.plain_sha
