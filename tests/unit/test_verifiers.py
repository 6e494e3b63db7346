"""The ready-made verifiers on real files, a real HTTP server, a real SQLite and a real Valkey."""

from __future__ import annotations

import base64
import hashlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
from pydantic import BaseModel

from conductor import Ctx
from conductor.declare import verifiers
from conductor.declare.effects import EffectSpec, Verdict, ask, bind_verifier
from conductor.declare.verifiers import file_content, http_get, redis_key, sql_row
from tests.support.server import ValkeyServer, free_port

MIB = 1024 * 1024


class Params(BaseModel):
    path: str = ""
    text: str = ""
    id: int = 0


def judge(verifier: Callable[..., Any], **params: Any) -> tuple[Verdict, str]:
    """As a capability would ask it."""
    bound = bind_verifier(EffectSpec("effect", verifier), tuple(Params.model_fields), "capability x")
    return ask(bound, Params(**params), Ctx.for_test())


def verdict(verifier: Callable[..., Any], **params: Any) -> Verdict:
    return judge(verifier, **params)[0]


# A file.


@pytest.fixture
def letter(tmp_path: Path) -> str:
    path = tmp_path / "letter"
    path.write_text("dear Ann — yours", encoding="utf-8")
    return str(path)


@pytest.mark.spec("EFF-1")
@pytest.mark.parametrize(
    ("expectation", "expected"),
    [
        ({}, Verdict.VERIFIED), ({"equals": "dear Ann — yours"}, Verdict.VERIFIED), ({"equals": "dear Ann — yours".encode()}, Verdict.VERIFIED),
        ({"equals": "dear Ann"}, Verdict.PARTIAL), ({"equals": "dear Ann — yours!"}, Verdict.PARTIAL), ({"equals": ""}, Verdict.PARTIAL),
        ({"contains": "Ann —"}, Verdict.VERIFIED), ({"contains": b"yours"}, Verdict.VERIFIED), ({"contains": "Bob"}, Verdict.PARTIAL),
        ({"sha256": hashlib.sha256("dear Ann — yours".encode()).hexdigest().upper()}, Verdict.VERIFIED), ({"sha256": "0" * 64}, Verdict.PARTIAL),
        ({"contains": "Ann", "sha256": "0" * 64}, Verdict.PARTIAL), ({"equals": "dear Ann — yours", "contains": "Bob"}, Verdict.PARTIAL),
        ({"contains": "dear", "equals": "dear Ann — yours", "sha256": hashlib.sha256("dear Ann — yours".encode()).hexdigest()}, Verdict.VERIFIED),
    ],
)
def test_a_file_with_content(letter: str, expectation: dict[str, Any], expected: Verdict) -> None:
    assert verdict(file_content(letter, **expectation)) is expected


@pytest.mark.spec("EFF-1")
def test_every_argument_may_come_from_the_parameters(letter: str) -> None:
    verifier = file_content(lambda p: p.path, contains=lambda p: p.text)
    assert verdict(verifier, path=letter, text="Ann") is Verdict.VERIFIED
    assert verdict(verifier, path=letter, text="Bob") is Verdict.PARTIAL
    assert verdict(verifier, path=letter + ".gone", text="Ann") is Verdict.ABSENT


def test_an_expectation_that_comes_out_as_none_does_not_count_as_met(letter: str) -> None:
    found, reason = judge(file_content(letter, equals=lambda p: None))
    assert found is Verdict.INDETERMINATE and "equals gave None" in reason


@pytest.mark.spec("EFF-1")
def test_a_missing_file_is_absent_and_an_unreadable_one_indeterminate(tmp_path: Path, letter: str) -> None:
    dangling = tmp_path / "dangling"
    dangling.symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe")
    for missing in (tmp_path / "none", tmp_path / "none" / "deeper", Path(letter) / "below a file", dangling):
        assert verdict(file_content(missing)) is Verdict.ABSENT, missing
    for unreadable in (tmp_path, tmp_path / "pipe"):
        found, reason = judge(file_content(unreadable, contains="x"))
        assert found is Verdict.INDETERMINATE and "not a regular file" in reason
    assert verdict(file_content("a\0b")) is Verdict.INDETERMINATE


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="needs a file that opens but cannot be read")
def test_a_file_that_breaks_while_it_is_read_is_indeterminate() -> None:
    found, reason = judge(file_content("/proc/self/mem", contains="x"))
    assert found is Verdict.INDETERMINATE and "OSError" in reason


@pytest.mark.parametrize("offset", [0, 65_534, 65_536, 65_537, 131_070, 200_000])
def test_text_is_found_across_the_pieces_a_large_file_is_read_in(tmp_path: Path, offset: int) -> None:
    path = tmp_path / "large"
    path.write_bytes(b"n" * offset + b"needle" + b"n" * 300_000)
    assert verdict(file_content(path, contains="needle")) is Verdict.VERIFIED
    assert verdict(file_content(path, contains="needles")) is Verdict.PARTIAL
    assert verdict(file_content(path, contains=b"x" * 400_000)) is Verdict.PARTIAL


# HTTP.


class Site(ThreadingHTTPServer):
    """Answers by path; `hung` lets a hanging answer go when the test ends."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Pages)
        self.asked: list[tuple[str, str | None]] = []
        self.hung = threading.Event()

    def url(self, path: str, credentials: str = "") -> str:
        return f"http://{credentials}127.0.0.1:{self.server_port}{path}"


class _Pages(BaseHTTPRequestHandler):
    server: Site

    def do_GET(self) -> None:
        self.server.asked.append((self.path, self.headers.get("Authorization")))
        page = self.path.partition("?")[0].strip("/").split("/")
        getattr(self, f"page_{page[0]}")(*page[1:])

    def send(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def page_order(self, number: str) -> None:
        self.send(200, f'{{"id": {number}, "state": {{"paid": true, "by": "Ann"}}, "lines": [{{"n": 1}}]}}'.encode())

    def page_status(self, status: str) -> None:
        self.send(int(status), b"body")

    def page_go(self, *to: str) -> None:
        self.send(302, Location="/" + "/".join(to))

    def page_away(self, port: str) -> None:
        self.send(302, Location=f"http://127.0.0.1:{port}/order/1?token=t0p")

    def page_large(self, size: str) -> None:
        self.send(200, b"first " + b"x" * int(size) + b" last")

    def page_whoami(self) -> None:
        authorised = self.headers.get("Authorization") == "Basic " + base64.b64encode(b"ann:s/cret").decode()
        self.send(200 if authorised and self.headers.get("X-Key", "k") == "k" else 401)

    def page_hang(self) -> None:
        self.server.hung.wait(30)

    def page_trickle(self) -> None:
        self.send_response(200)
        self.end_headers()
        while not self.server.hung.wait(0.02):
            try:
                self.wfile.write(b".")
            except OSError:
                return

    def page_cut(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "100")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: Any) -> None:
        return


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    site = Site()
    thread = threading.Thread(target=site.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield site
    site.hung.set()
    site.shutdown()
    site.server_close()
    thread.join(5)


@pytest.mark.spec("EFF-1")
@pytest.mark.parametrize(
    ("path", "expectation", "expected"),
    [
        ("/order/7", {}, Verdict.VERIFIED), ("/order/7", {"contains": '"paid": true'}, Verdict.VERIFIED),
        ("/order/7", {"contains": '"paid": false'}, Verdict.PARTIAL), ("/order/7", {"json": {"id": 7, "state": {"paid": True}}}, Verdict.VERIFIED),
        ("/order/7", {"json": {"id": 8}}, Verdict.PARTIAL), ("/order/7", {"json": {"state": {"paid": 1}}}, Verdict.PARTIAL),
        ("/order/7", {"json": {"gone": 1}}, Verdict.PARTIAL), ("/order/7", {"json": [7]}, Verdict.PARTIAL),
        ("/order/7", {"json": {"lines": [{"n": 1}]}}, Verdict.VERIFIED), ("/order/7", {"json": {"lines": [{"n": 1}, {}]}}, Verdict.PARTIAL),
        ("/order/7", {"json": {"id": 7}, "contains": "Bob"}, Verdict.PARTIAL), ("/status/404", {}, Verdict.ABSENT), ("/status/410", {}, Verdict.ABSENT),
        ("/status/404", {"status": 404, "contains": "body"}, Verdict.VERIFIED), ("/status/409", {"status": 409}, Verdict.VERIFIED),
        ("/status/204", {"status": 204}, Verdict.VERIFIED), ("/go/order/7", {"json": {"id": 7}}, Verdict.VERIFIED),
        *((f"/status/{status}", {}, Verdict.INDETERMINATE) for status in (202, 304, 400, 401, 403, 429, 500, 502, 503, 504)),
        ("/status/200", {"json": {"id": 7}}, Verdict.INDETERMINATE), ("/cut", {"json": {}}, Verdict.INDETERMINATE),
        ("/cut", {"contains": "x"}, Verdict.INDETERMINATE),
        (f"/large/{MIB - 11}", {"contains": "last"}, Verdict.VERIFIED), (f"/large/{MIB - 11}", {"contains": "none"}, Verdict.PARTIAL),
        (f"/large/{2 * MIB}", {"contains": "first"}, Verdict.VERIFIED), (f"/large/{2 * MIB}", {"contains": "last"}, Verdict.INDETERMINATE),
        (f"/large/{2 * MIB}", {"json": {}}, Verdict.INDETERMINATE),
    ],
)
def test_http(web: Site, path: str, expectation: dict[str, Any], expected: Verdict) -> None:
    assert verdict(http_get(web.url(path), **expectation)) is expected


@pytest.mark.spec("EFF-1")
def test_http_arguments_may_come_from_the_parameters(web: Site) -> None:
    verifier = http_get(lambda p: web.url(f"/order/{p.id}"), json=lambda p: {"id": p.id}, timeout=lambda p: 5)
    assert verdict(verifier, id=4) is Verdict.VERIFIED


@pytest.mark.spec("EFF-1")
def test_nobody_listens_and_nobody_answers(web: Site) -> None:
    assert verdict(http_get(f"http://127.0.0.1:{free_port()}/")) is Verdict.INDETERMINATE
    for path in ("/hang", "/trickle"):
        found, reason = judge(http_get(web.url(path), contains="x", timeout=0.2))
        assert found is Verdict.INDETERMINATE and "TimeoutError" in reason, path


@pytest.mark.parametrize("url", ["file:///etc/hostname", "ftp://127.0.0.1/x", "data:,x", "no url", "http://[", "http://127.0.0.1:x/", "http://a b/"])
def test_only_http_is_asked(url: str) -> None:
    assert verdict(http_get(url)) is Verdict.INDETERMINATE


def test_a_redirect_to_another_place_is_not_followed_and_told_without_its_token(web: Site) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        other.settimeout(0)
        port = other.getsockname()[1]
        found, reason = judge(http_get(web.url(f"/away/{port}?token=t0p"), headers={"Authorization": "secret"}))
        with pytest.raises(BlockingIOError):
            other.accept()
    assert found is Verdict.INDETERMINATE
    assert f"answered 302, a redirect to 127.0.0.1:{port} that is not followed" in reason and "t0p" not in reason


def test_redirects_in_a_ring_end(web: Site) -> None:
    assert verdict(http_get(web.url("/go/" * 40 + "go"))) is Verdict.INDETERMINATE


def test_credentials_in_the_url_are_sent_and_never_told(web: Site) -> None:
    assert verdict(http_get(web.url("/whoami", "ann:s%2Fcret@"), headers={"X-Key": "k"})) is Verdict.VERIFIED
    assert verdict(http_get(web.url("/go/whoami", "ann:s%2Fcret@"))) is Verdict.VERIFIED
    assert verdict(http_get(web.url("/whoami", "ann:s%2Fcret@"), headers=lambda p: {"X-Key": "other"})) is Verdict.INDETERMINATE
    found, reason = judge(http_get(web.url("/whoami", "ann:hunter2@")))
    assert found is Verdict.INDETERMINATE and "answered 401" in reason and "hunter2" not in reason


# SQL.


@pytest.fixture
def orders(tmp_path: Path) -> str:
    sqlalchemy = pytest.importorskip("sqlalchemy")
    url = f"sqlite:///{tmp_path}/orders.db"
    engine = sqlalchemy.create_engine(url)
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text("create table orders (id integer primary key, state text)"))
        connection.execute(sqlalchemy.text("insert into orders values (1, 'paid'), (2, 'open'), (3, 'paid')"))
    engine.dispose()
    return url


ONE = "select id, state from orders where id = :id"


@pytest.mark.spec("EFF-1")
@pytest.mark.parametrize(
    ("query", "parameters", "expect", "expected"),
    [
        (ONE, {"id": 1}, None, Verdict.VERIFIED), (ONE, {"id": 9}, None, Verdict.ABSENT), (ONE, {"id": 9}, {"state": "paid"}, Verdict.ABSENT),
        (ONE, {"id": 1}, {"state": "paid"}, Verdict.VERIFIED), (ONE, {"id": 2}, {"state": "paid"}, Verdict.PARTIAL),
        (ONE, {"id": 1}, (1, "paid"), Verdict.VERIFIED), (ONE, {"id": 1}, [1, "open"], Verdict.PARTIAL), (ONE, {"id": 1}, 1, Verdict.VERIFIED),
        (ONE, {"id": 1}, 2, Verdict.PARTIAL), ("select state from orders", None, "open", Verdict.VERIFIED),
        ("select count(*) from orders where id = 9", None, 0, Verdict.VERIFIED), (ONE, {"id": 1}, {"colour": "red"}, Verdict.INDETERMINATE),
        ("select nonsense", None, None, Verdict.INDETERMINATE), (ONE, None, None, Verdict.INDETERMINATE),
        ("update orders set state = 'x'", None, None, Verdict.INDETERMINATE),
    ],
)
def test_a_row(orders: str, query: str, parameters: Any, expect: Any, expected: Verdict) -> None:
    import sqlalchemy

    engine = sqlalchemy.create_engine(orders)
    assert verdict(sql_row(orders, query, parameters, expect=expect)) is expected
    assert verdict(sql_row(engine, query, parameters, expect=expect)) is expected
    assert verdict(sql_row(orders, "select 1 from orders where state = 'x'")) is Verdict.ABSENT, "asking must not change anything"
    engine.dispose()


@pytest.mark.spec("EFF-1")
def test_a_statement_and_arguments_from_the_parameters(orders: str) -> None:
    import sqlalchemy

    table = sqlalchemy.table("orders", sqlalchemy.column("id"), sqlalchemy.column("state"))
    verifier = sql_row(lambda p: orders, lambda p: sqlalchemy.select(table).where(table.c.id == p.id), expect=lambda p: {"state": p.text})
    assert [verdict(verifier, id=number, text="paid") for number in (1, 2, 9)] == [Verdict.VERIFIED, Verdict.PARTIAL, Verdict.ABSENT]
    assert verdict(sql_row(orders, ONE, lambda p: {"id": p.id}), id=3) is Verdict.VERIFIED


def test_a_database_that_cannot_be_asked_is_indeterminate(orders: str) -> None:
    for url in ("sqlite:////nowhere/at/all.db", "nonsense", "nosuchdialect://x", 5):
        assert verdict(sql_row(url, "select 1")) is Verdict.INDETERMINATE, url
    found, reason = judge(sql_row(orders, "select :secret from nowhere", {"secret": "hunter2"}))
    assert found is Verdict.INDETERMINATE and "no such table" in reason and "hunter2" not in reason


def test_without_sqlalchemy_the_reason_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    found, reason = judge(sql_row("sqlite://", "select 1"))
    assert found is Verdict.INDETERMINATE and "pip install 'sqlalchemy" in reason


# Redis.


@pytest.fixture
def keyed(valkey: ValkeyServer, namespace: str) -> Iterator[str]:
    """A prefix with a string, a number and a hash under it."""
    client = valkey.client()
    client.set(f"{namespace}:text", "höhe")
    client.set(f"{namespace}:count", 7)
    client.hset(f"{namespace}:hash", mapping={"state": "paid"})
    yield namespace
    client.delete(*(f"{namespace}:{name}" for name in ("text", "count", "hash")))


@pytest.mark.spec("EFF-1")
@pytest.mark.parametrize(
    ("key", "expectation", "expected"),
    [
        ("text", {}, Verdict.VERIFIED), ("hash", {}, Verdict.VERIFIED), ("none", {}, Verdict.ABSENT), ("text", {"equals": "höhe"}, Verdict.VERIFIED),
        ("text", {"equals": "höhe".encode()}, Verdict.VERIFIED), ("text", {"equals": "hö"}, Verdict.PARTIAL), ("none", {"equals": "x"}, Verdict.ABSENT),
        ("count", {"equals": 7}, Verdict.VERIFIED), ("count", {"equals": 8}, Verdict.PARTIAL), ("hash", {"field": "state"}, Verdict.VERIFIED),
        ("hash", {"field": "colour"}, Verdict.ABSENT), ("none", {"field": "state"}, Verdict.ABSENT),
        ("hash", {"field": "state", "equals": "paid"}, Verdict.VERIFIED), ("hash", {"field": "state", "equals": "open"}, Verdict.PARTIAL),
        ("hash", {"equals": "paid"}, Verdict.INDETERMINATE), ("text", {"field": "state"}, Verdict.INDETERMINATE),
    ],
)
def test_a_key(valkey: ValkeyServer, keyed: str, key: str, expectation: dict[str, Any], expected: Verdict) -> None:
    raw = redis.Redis(unix_socket_path=str(valkey.socket))
    for target in (valkey.url(), valkey.client(), raw, f"redis+socket://{valkey.socket}"):
        assert verdict(redis_key(target, f"{keyed}:{key}", **expectation)) is expected, target
    raw.close()


@pytest.mark.spec("EFF-1")
def test_redis_arguments_may_come_from_the_parameters(valkey: ValkeyServer, keyed: str) -> None:
    verifier = redis_key(lambda p: valkey.url(), lambda p: p.path, field=lambda p: "state", equals=lambda p: p.text)
    assert verdict(verifier, path=f"{keyed}:hash", text="paid") is Verdict.VERIFIED


def test_a_server_that_cannot_be_asked_is_indeterminate(valkey: ValkeyServer) -> None:
    found, reason = judge(redis_key(f"redis://:hunter2@127.0.0.1:{free_port()}/0", "x"))
    assert found is Verdict.INDETERMINATE and "ConnectionError" in reason and "hunter2" not in reason
    found, reason = judge(redis_key(redis.asyncio.Redis.from_url(valkey.url()), "x"))
    assert found is Verdict.INDETERMINATE and "async client" in reason


def test_a_client_made_for_a_url_is_closed_and_a_given_one_is_not(valkey: ValkeyServer, keyed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []
    for name in ("given", "made"):
        client = redis.Redis.from_url(valkey.url())
        monkeypatch.setattr(client, "close", lambda name=name: closed.append(name))
        monkeypatch.setattr(verifiers, "_client", lambda url, client=client: client)
        assert verdict(redis_key(client if name == "given" else valkey.url(), f"{keyed}:text")) is Verdict.VERIFIED
    assert closed == ["made"]


def test_declaring_loads_no_library() -> None:
    code = (
        "import sys, conductor.declare.verifiers as v\n"
        "v.sql_row('sqlite://', 'select 1'); v.redis_key('redis://x', 'y'); v.http_get('http://x'); v.file_content('x')\n"
        "print(sorted({'redis', 'sqlalchemy', 'httpx', 'celery'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
