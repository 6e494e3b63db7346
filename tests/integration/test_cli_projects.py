"""The command line in projects as people have them: where the app is found, what is suggested, and what still works while a module is broken."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from conductor.broker.worker import announce
from conductor.cli import exits, group
from conductor.cli.finding import find_app
from conductor.declare import registry
from conductor.runs.execute import Drainer
from tests.support.server import ValkeyServer, free_port

ROOT = Path(__file__).parents[2]
APP = """
from celery import Celery
from conductor import Conductor
app = Celery({name!r}, broker={broker!r}, set_as_current=False)
conductor = Conductor(app, {more})
"""
FLOW = """
from conductor import Workflow
flow = Workflow("order")
@flow.step
def charge() -> int:
    return 1
"""
BROKEN = {
    "SyntaxError": ("def x(:\n", "invalid syntax"),
    "ModuleNotFoundError": ("import no_such_module_at_all\n", "No module named 'no_such_module_at_all'"),
    "": ("@flow.step\ndef ship(chrage: int) -> int: ...\n", "order.ship: parameter 'chrage'"),
    "ZeroDivisionError": ("1 / 0\n", "division by zero"),
}


class Project:
    """A package with an app and a `workflows.py`, in a directory in which the command line is called."""

    def __init__(self, directory: Path, valkey: ValkeyServer, namespace: str) -> None:
        self.directory, self.name = directory, f"shop_{uuid.uuid4().hex[:8]}"
        more = f"redis_url={valkey.url()!r}, namespace={namespace!r}, partitions=2"
        self.write("__init__.py", APP.format(name=self.name, broker="memory://", more=more))
        self.write("workflows.py", FLOW)

    def write(self, file: str, text: str) -> None:
        (self.directory / self.name).mkdir(exist_ok=True)
        (self.directory / self.name / file).write_text(text)
        importlib.invalidate_caches()

    def forget(self) -> None:
        """As in a new process: nothing of the project has been imported."""
        registry.declared.clear()
        registry._places.clear()
        for module in [name for name in sys.modules if name == self.name or name.startswith(f"{self.name}.")]:
            del sys.modules[module]

    def call(self, *arguments: str, named: bool = True, env: dict[str, str] | None = None) -> Result:
        self.forget()
        return CliRunner(env=env).invoke(group, [*(["-A", self.name] if named else []), *arguments])

    def ok(self, *arguments: str) -> str:
        result = self.call(*arguments)
        assert result.exit_code == exits.OK, f"{arguments}: exit {result.exit_code}\n{result.output}"
        return result.stdout

    def start(self, *options: str) -> str:
        return str(json.loads(self.ok("start", "order", "--json", *options))["run_id"])


@pytest.fixture
def project(valkey: ValkeyServer, namespace: str, clean_keys: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("CELERY_APP", "APP"):
        monkeypatch.delenv(name, raising=False)
    with registry.isolated():
        made = Project(tmp_path, valkey, namespace)
        yield made
        made.forget()


# Which app, and what is suggested.


@pytest.mark.spec("CLI-3", "ERR-2")
def test_suggested_commands_name_the_app_as_the_user_did(project: Project) -> None:
    run_id = project.start("--countdown", "1h")
    assert project.ok("why", run_id).splitlines()[1] == f"→ conductor -A {project.name} cancel {run_id}"
    named = project.call("why", run_id, named=False, env={"CELERY_APP": project.name})
    assert named.stdout.splitlines()[1] == f"→ conductor cancel {run_id}", "the environment will name it again"
    project.ok("pause", "--workflow", "order")
    assert f"conductor -A {project.name} resume --workflow order" in project.ok("queues")
    assert f"conductor -A {project.name} cancel {run_id}" in project.call("purge", run_id, "--yes").stderr


@pytest.mark.spec("CLI-3", "SET-1")
def test_the_command_that_starts_a_worker_names_the_users_app(project: Project) -> None:
    run_id = project.start()
    worker = f"celery -A {project.name} worker"
    checks = {check["name"]: check["remedy"] for check in json.loads(project.ok("doctor", "--json"))["checks"]}
    assert checks["workers"] == f"{worker} -Q celery"
    assert worker in checks["sweeps"]
    project.forget()
    _grow_old(find_app(project.name).conductor.engine.store, run_id)
    assert project.ok("why", run_id).splitlines()[1].startswith(f"→ {worker} -Q celery")
    stale = json.loads(project.ok("sweeper", "--once", "--stale-after", "0s", "--json"))["stale"]
    assert [one["command"] for one in stale] == [f"{worker} -Q celery"]


@pytest.mark.spec("CLI-5")
def test_workers_are_called_busy_only_if_one_works_in_that_queue(project: Project) -> None:
    from conductor.store import Want

    busy, waiting = project.start(), project.start()
    store = find_app(project.name).conductor.engine.store
    _grow_old(store, waiting)
    project.ok("sweeper", "--once")  # its own poke is young and unanswered: that says nothing of workers
    assert "nobody has taken it yet" in project.ok("why", waiting)
    project.forget()
    find_app(project.name).loader.import_default_modules()
    store.register_code("c", sorted(code.signature for code in registry.declared["order"].codes.values()))
    assert store.claim(int(busy[-2:], 16), Want("celery", 1, "c", "tag", first=True)).attempts
    claimed, other = (busy, waiting) if "is running" in project.ok("why", busy) else (waiting, busy)
    _grow_old(store, other)
    assert "all workers are busy" in project.ok("why", other)
    store.client().zadd(store.keys.of(int(claimed[-2:], 16), "leases"), {f"{claimed}:0": 1}, xx=True)  # that worker is long gone
    assert "all workers are busy" not in project.ok("why", other)


def _grow_old(store: Any, run_id: str) -> None:
    """The first step has been ready for a minute."""
    key = store.keys.run(run_id)
    state, fence, attempt, losses, ready_at, *rest = store.client().hget(key, "0").split(";")
    assert state == "R"
    store.client().hset(key, "0", ";".join([state, fence, attempt, losses, str(int(ready_at) - 60_000), *rest]))


@pytest.mark.spec("CLI-3", "ERR-2")
def test_without_a_name_the_ready_made_app_is_taken_only_from_this_directory(project: Project) -> None:
    assert importlib.util.find_spec("workers") is not None, "it can be imported, but it is not the user's"
    refused = project.call("runs", named=False)
    assert refused.exit_code == exits.USAGE
    assert "-A" in refused.stderr
    assert "CELERY_APP" in refused.stderr


@pytest.mark.spec("WF-1", "WF-11", "CLI-3")
def test_the_files_in_the_readme_are_a_project_that_works(project: Project, valkey: ValkeyServer, namespace: str) -> None:
    text = (ROOT / "README.md").read_text()
    for file, code in re.findall(r"```python\n# shop/(\w+\.py)\n(.*?)```", text, re.DOTALL):
        more = f"conductor_redis_url={valkey.url()!r}, conductor_namespace={namespace!r}, conductor_partitions=2"
        project.write(file, code.replace('"redis://localhost:6379/0")', f'"memory://")\napp.conf.update({more})'))
    project.write("__init__.py", "")
    (command,) = re.findall(r"^conductor -A shop (start .*) --wait$", text, re.MULTILINE)
    run_id = project.ok(*shlex.split(command)).strip()
    engine = find_app(project.name).conductor.engine
    Drainer(engine, worker_name="w1").drain(int(run_id[-2:], 16), "celery")
    assert json.loads(project.ok("show", run_id, "--values", "--json"))["result"] == "charged 900 for shelf-42"


# Modules that are broken.


@pytest.mark.spec("CLI-3", "ERR-2", "WF-2")
@pytest.mark.parametrize("kind", sorted(BROKEN))
def test_check_names_file_and_line_of_a_broken_module(project: Project, kind: str) -> None:
    text, message = BROKEN[kind]
    project.write("workflows.py", FLOW + text)
    line = FLOW.count("\n") + 1 + text.startswith("@")
    result = project.call("check")
    assert result.exit_code == exits.FOUND_WRONG
    place = re.escape(f"{project.name}/workflows.py:") + f"({line}|{line - 1}): {kind}"
    assert re.match(place, result.stdout), result.stdout
    assert message in result.stdout
    assert "Traceback" not in result.output
    told = json.loads(project.call("check", "--json").stdout)
    assert (told["ok"], told["broken"]["file"]) == (False, f"{project.name}/workflows.py")


@pytest.mark.spec("CLI-3")
def test_check_names_file_and_line_of_a_broken_app(project: Project) -> None:
    project.write("__init__.py", "import os\nraise RuntimeError('no\\nkey')\n")
    result = project.call("check")
    assert (result.exit_code, result.stdout.strip()) == (exits.FOUND_WRONG, f"{project.name}/__init__.py:2: RuntimeError: no key")
    assert project.call("runs").stderr.strip() == f"error: {project.name}/__init__.py:2: RuntimeError: no key"


@pytest.mark.spec("CLI-3")
def test_an_operator_can_look_and_cancel_while_a_module_is_broken(project: Project, caplog: pytest.LogCaptureFixture) -> None:
    run_id = project.start()
    project.write("workflows.py", FLOW + "1 / 0\n")
    for arguments in (["runs"], ["show", run_id], ["why", run_id], ["events", run_id], ["queues"], ["cancel", run_id], ["fsck"]):
        result = project.call(*arguments)
        assert result.exit_code == exits.OK, (arguments, result.output)
        assert result.stderr.count("warning: ") == 1
        assert f"{project.name}/workflows.py:7: ZeroDivisionError" in result.stderr
    assert not [one for one in caplog.records if one.name.startswith("celery")], "a warning is one line, without Celery's traceback"
    assert json.loads(project.call("runs", "--json").stdout)["runs"][0]["state"] == "cancelled"
    for arguments in (["start", "order"], ["fork", run_id, "--from", "charge"], ["graph", "order"]):
        refused = project.call(*arguments)
        assert (refused.exit_code, "ZeroDivisionError" in refused.stderr) == (exits.FAILED, True), arguments


@pytest.mark.spec("CLI-3")
def test_what_modules_print_stands_beside_the_answer(project: Project) -> None:
    project.write("workflows.py", "print('hello')\n" + FLOW)
    project.write("__init__.py", "print('hello')\n" + (project.directory / project.name / "__init__.py").read_text())
    result = project.call("runs", "--json")
    assert json.loads(result.stdout)["runs"] == []
    assert result.stderr == "hello\nhello\n"


@pytest.mark.spec("CLI-3")
def test_dev_starts_nothing_while_a_module_is_broken(project: Project) -> None:
    project.write("workflows.py", "print('hello')\n" + FLOW + "1 / 0\n")
    program = [sys.executable, "-c", "from conductor.cli import main; main()", "-A", project.name, "dev", "--own-server", "--json"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(project.directory)])}
    done = subprocess.run(program, capture_output=True, text=True, env=environment, cwd=project.directory, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (exits.FOUND_WRONG, "")
    assert f"error: {project.name}/workflows.py:8: ZeroDivisionError: division by zero" in done.stderr


# A store, or a broker, that is away.


@pytest.mark.spec("ERR-2", "SET-2")
@pytest.mark.parametrize(("of_broker", "setting"), [(True, "broker_url of the Celery app"), (False, "conductor_redis_url (now from: code)")])
def test_a_store_that_is_away_is_told_with_the_setting_that_names_it(project: Project, of_broker: bool, setting: str) -> None:
    gone = f"redis://:hunter2@127.0.0.1:{free_port()}/0"
    more = "namespace='away'" if of_broker else f"namespace='away', redis_url={gone!r}"
    project.write("__init__.py", APP.format(name=project.name, broker=gone if of_broker else "memory://", more=more))
    for arguments in (["runs"], ["start", "order"], ["pause", "--all"], ["runs", "--json"]):
        result = project.call(*arguments)
        assert result.exit_code == exits.UNREACHABLE
        assert f"correct {setting}" in result.stderr, result.stderr
        assert "start the server" in result.stderr
        assert "hunter2" not in result.output
    told = json.loads(project.call("doctor", "--json").stdout)
    assert f"correct {setting}" in told["checks"][0]["remedy"]


@pytest.mark.spec("SET-1")
def test_a_broker_that_does_not_answer_is_a_failed_check(project: Project, valkey: ValkeyServer, namespace: str) -> None:
    more = f"redis_url={valkey.url()!r}, namespace={namespace!r}, partitions=2"
    project.write("__init__.py", APP.format(name=project.name, broker=f"redis://127.0.0.1:{free_port()}/0", more=more))
    result = project.call("doctor", "--json")
    assert result.exit_code == exits.FOUND_WRONG
    broker = next(check for check in json.loads(result.stdout)["checks"] if check["name"] == "broker")
    assert broker["status"] == "failed"
    assert "broker_url" in broker["remedy"]


# A worker without workflows.


@pytest.mark.spec("WF-10", "WF-11")
def test_a_worker_without_workflows_says_so_as_a_warning(project: Project, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="conductor.broker.worker")
    app = find_app(project.name)
    announce(app.conductor)
    assert (caplog.records[-1].levelname, "0 workflows" in caplog.text, "autodiscover=" in caplog.text) == ("WARNING", True, True)
    app.loader.import_default_modules()
    announce(app.conductor)
    assert (caplog.records[-1].levelname, caplog.messages[-1].endswith("1 workflow")) == ("INFO", True)
