"""A real Django project: its apps' workflows are found, its settings are read, and a start waits for the commit of its transaction."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.server import ValkeyServer

FILES = {
    "site_of_tests/__init__.py": "",
    "site_of_tests/settings.py": """
import os
SECRET_KEY = "of a test"
INSTALLED_APPS = ["shop_of_tests", "django.contrib.contenttypes", "django.contrib.auth"]
ROOT_URLCONF = "site_of_tests.urls"
DEBUG = True
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "db.sqlite3"}}
CELERY_BROKER_URL = "memory://"
CELERY_CONDUCTOR_REDIS_URL = os.environ["STATE_URL"]
CELERY_CONDUCTOR_NAMESPACE = os.environ["STATE_NAMESPACE"]
CELERY_CONDUCTOR_PARTITIONS = 2
""",
    "site_of_tests/celery.py": """
from celery import Celery
from conductor import Conductor
app = Celery("site_of_tests")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
conductor = Conductor(app)
""",
    "site_of_tests/urls.py": """
from django.http import HttpResponse
from django.urls import path

urlpatterns = [path("hello", lambda request: HttpResponse("hello"))]
""",
    "shop_of_tests/__init__.py": "",
    "shop_of_tests/workflows.py": """
from pydantic import BaseModel
from conductor import Workflow

class Order(BaseModel):
    id: int

flow = Workflow("order", input=Order)

@flow.step
def charge(order: Order) -> int:
    return order.id
""",
}
MAIN = """
import json

import django

django.setup()
from django.db import transaction

from conductor import BadInput
from site_of_tests.celery import app, conductor

app.loader.import_default_modules()
flow, told = conductor.workflow("order"), {}
store = conductor.engine.store


def runs():
    return sum(store.client().zcard(store.keys.of(home, "runs")) for home in range(store.partitions))


with transaction.atomic():
    flow.delay_on_commit({"id": 1}, key="committed")
    told["inside"] = runs()
told["committed"] = runs()
try:
    with transaction.atomic():
        flow.delay_on_commit({"id": 2})
        raise LookupError
except LookupError:
    told["rolled back"] = runs()
with transaction.atomic():
    try:
        with transaction.atomic():
            flow.delay_on_commit({"id": 3})
            raise LookupError
    except LookupError:
        pass
    try:
        flow.delay_on_commit({"id": "4"})
    except BadInput as error:
        told["refused"] = str(error)
told["savepoint rolled back"] = runs()
flow.delay_on_commit({"id": 5})
told["without a transaction"] = runs()
told["source"] = conductor.settings.source("partitions")
print(json.dumps(told))
"""


@pytest.mark.spec("WF-9", "WF-11", "SET-1")
def test_a_start_waits_for_the_commit_of_its_transaction(valkey: ValkeyServer, namespace: str, clean_keys: None, tmp_path: Path) -> None:
    told = run_in_django(tmp_path, valkey, namespace)
    assert [told[when] for when in ("inside", "committed", "rolled back", "savepoint rolled back", "without a transaction")] == [0, 1, 1, 1, 2]
    assert "id: Input should be a valid integer" in told["refused"]
    assert told["source"] == "app.conf conductor_partitions"


MOUNTING = """
import json

import django

django.setup()
from django.core.asgi import get_asgi_application
from starlette.testclient import TestClient

from conductor.service.access import Caller
from site_of_tests.celery import conductor


def who(request):
    from django.contrib.auth.models import User  # asked in a thread, as an ORM wants it

    found = User.objects.filter(username=request.headers.get("x-user", "")).first()
    return found and Caller(found.username, frozenset({"read", "write"}), frozenset({found.username}))


site, service = get_asgi_application(), conductor.asgi(auth=who)


async def application(scope, receive, send):
    if scope["type"] == "lifespan":
        await service(scope, receive, send)
    elif scope["path"].startswith("/conductor/"):
        await service({**scope, "root_path": scope.get("root_path", "") + "/conductor"}, receive, send)
    else:
        await site(scope, receive, send)


from django.core.management import call_command

call_command("migrate", verbosity=0)
from django.contrib.auth.models import User

User.objects.create(username="ann")
order = {"workflow": "order", "input": {"id": 7}}
with TestClient(application, base_url="http://127.0.0.1") as client:
    made = client.post("/conductor/v1/runs", json=order, headers={"x-user": "ann"})
    told = {
        "site": client.get("/hello").text, "health": client.get("/conductor/v1/health").json(), "made": made.status_code,
        "location": made.headers["location"].replace(made.json()["run_id"], "ID"),
        "session": client.get(made.headers["location"], headers={"x-user": "ann"}).json()["session"],
        "stranger": client.get("/conductor/v1/runs").status_code,
        "odd": client.get("/conductor/v1/sessions/a%2Fb/grants", headers={"x-user": "ann"}).json()["error"]["code"],
    }
told["deeds"] = [deed.actor for deed in conductor.engine.store.deeds()]
print(json.dumps(told))
"""

@pytest.mark.spec("SVC-1", "SVC-4")
def test_the_service_is_mounted_beside_a_django_site(valkey: ValkeyServer, namespace: str, clean_keys: None, tmp_path: Path) -> None:
    """The site says who calls, from its own database; the end of the server is heard, so no record is lost."""
    told = run_in_django(tmp_path, valkey, namespace, MOUNTING)
    assert (told["site"], told["health"], told["stranger"]) == ("hello", {"status": "ok"}, 401)
    assert (told["made"], told["location"], told["session"]) == (201, "/conductor/v1/runs/ID", "ann")
    assert (told["odd"], told["deeds"]) == ("unknown_session", ["ann"])


def run_in_django(directory: Path, valkey: ValkeyServer, namespace: str, main: str = MAIN) -> Any:
    """In a process of its own: Django is set up once for a whole process."""
    for name, text in {**FILES, "main.py": main}.items():
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text(text)
    root = str(Path(__file__).parents[2])
    env = {
        **os.environ, "DJANGO_SETTINGS_MODULE": "site_of_tests.settings", "STATE_URL": valkey.url(), "STATE_NAMESPACE": namespace,
        "PYTHONPATH": os.pathsep.join([str(directory), root]),
    }
    done = subprocess.run([sys.executable, "main.py"], cwd=directory, env=env, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
