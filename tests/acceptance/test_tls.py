"""`rediss://`: an ordinary worker whose broker and state are behind TLS; certificates and passwords that are not taken."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from celery import Celery

from conductor import Conductor
from conductor.errors import StoreUnreachable
from tests.support.processes import Processes
from tests.support.server import BROKER_DB, ValkeyServer
from tests.support.tls import TlsFront, certificate


@pytest.mark.spec("SET-2")
def test_an_ordinary_worker_works_through_tls(valkey: ValkeyServer, tmp_path: Path, namespace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state is where the broker is, as the URL of the broker says; nothing else is set."""
    made = certificate(tmp_path)
    with TlsFront(valkey.port, made) as front:
        url = f"rediss://localhost:{front.port}/{BROKER_DB}?ssl_cert_reqs=CERT_REQUIRED&ssl_ca_certs={made.file}"
        monkeypatch.setenv("TEST_BROKER_URL", os.environ.get("TEST_BROKER_URL", "memory://"))
        from tests.acceptance import celery_app  # noqa: F401 - declares the workflows for the client

        processes = Processes(tmp_path, {"TEST_BROKER_URL": url, "CONDUCTOR_NAMESPACE": namespace}, app="tests.acceptance.celery_app")
        conductor = Conductor(Celery("client", broker=url, set_as_current=False), namespace=namespace)
        try:
            worker = processes.worker(concurrency=1)
            assert f"rediss://localhost:{front.port}" in worker.text()
            assert conductor.start("quick", {"trace": str(tmp_path / "trace")}).get(timeout=15) == 2
        finally:
            processes.close()
        assert front.met >= 4


@pytest.mark.spec("SET-2")
def test_a_certificate_that_is_not_trusted_is_refused_at_once_and_named(valkey: ValkeyServer, tmp_path: Path, namespace: str) -> None:
    with TlsFront(valkey.port, certificate(tmp_path)) as front:
        url = f"rediss://localhost:{front.port}/0"
        conductor = Conductor(Celery("client", broker="memory://", set_as_current=False), redis_url=url, namespace=namespace)
        began = time.monotonic()
        with pytest.raises(StoreUnreachable, match=r"certificate verify failed"):
            conductor.start("quick", {"trace": ""})
        assert time.monotonic() - began < 5, "no patience makes a certificate good"


@pytest.mark.spec("SET-2")
def test_a_wrong_password_is_refused_at_once(own_valkey: ValkeyServer, namespace: str) -> None:
    own_valkey.client().config_set("requirepass", "right")
    url = f"redis://:wrong@127.0.0.1:{own_valkey.port}/0"
    conductor = Conductor(Celery("client", broker="memory://", set_as_current=False), redis_url=url, namespace=namespace)
    began = time.monotonic()
    with pytest.raises(StoreUnreachable, match=r"WRONGPASS|invalid username-password") as caught:
        conductor.cancel("01a1ee60-4676-70b2-bd26-4c1de90cf400", reason="x")
    assert time.monotonic() - began < 5
    assert "wrong@" not in str(caught.value)
