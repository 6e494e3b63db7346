"""Notification surfaces: the log, a signed webhook against a real receiver on this machine, Apprise, and every URL that must not be reached."""

from __future__ import annotations

import json
import logging
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from conductor.errors import BadInput, ConductorError, PermanentError, SettingsError, TransientError
from conductor.sessions import surfaces, webhook
from conductor.sessions.inbox import Message
from conductor.sessions.surfaces import LogSurface, SurfaceOptions, build
from conductor.sessions.webhook import Webhook, is_public, sign, verify

SECRET = "a secret of some length"
MESSAGE = Message("op:1:retry_exhausted", "retry_exhausted", "op", 1_763_456_789_123, {"capability": "pay", "error": "no\r\nroute", "n": [1]})
PUBLIC = "93.184.216.34"


class Receiver(ThreadingHTTPServer):
    """A real receiver; `answer` writes what it likes."""

    daemon_threads = True

    def __init__(self, answer: Callable[[BaseHTTPRequestHandler], None], context: ssl.SSLContext | None = None) -> None:
        self.got: list[tuple[str, dict[str, str], bytes]] = []
        self.names: list[str | None] = []
        self.over = threading.Event()
        got = self.got

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                got.append((self.path, dict(self.headers.items()), body))
                with suppress(OSError):
                    answer(self)

            def log_message(self, *_: Any) -> None:
                return None

        super().__init__(("127.0.0.1", 0), Handler)
        if context is not None:
            context.sni_callback = lambda _sock, name, _context: self.names.append(name)
            self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def handle_error(self, *_: Any) -> None:
        return None

    def close(self) -> None:
        self.over.set()
        self.shutdown()
        self.server_close()


def status(code: int, **headers: str) -> Callable[[BaseHTTPRequestHandler], None]:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(code)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.end_headers()

    return answer


@pytest.fixture
def receive() -> Iterator[Callable[..., Receiver]]:
    opened: list[Receiver] = []

    def start(*args: Any) -> Receiver:
        opened.append(Receiver(*args))
        return opened[-1]

    yield start
    for receiver in opened:
        receiver.close()


def hook(receiver: Receiver, path: str = "/hooks/1?x=2", **options: Any) -> Webhook:
    return Webhook(f"http://127.0.0.1:{receiver.server_port}{path}", SECRET, allow_private=True, allow_http=True, **options)


# A delivery.


@pytest.mark.spec("SES-4")
def test_a_webhook_posts_the_message_signed(receive: Callable[..., Receiver]) -> None:
    receiver = receive(status(204))
    hook(receiver).send(MESSAGE)
    [(path, headers, body)] = receiver.got
    assert path == "/hooks/1?x=2"
    assert json.loads(body) == {
        "id": MESSAGE.id, "kind": "retry_exhausted", "operation_id": "op", "at": 1_763_456_789_123, "body": MESSAGE.body,
    }
    assert (headers["Host"], headers["Content-Type"]) == (f"127.0.0.1:{receiver.server_port}", "application/json")
    assert headers["Conductor-Delivery"] == MESSAGE.id
    assert abs(int(headers["Conductor-Timestamp"]) - time.time()) < 30
    assert verify(SECRET, headers, body)


@pytest.mark.spec("SES-4")
def test_a_repeated_delivery_has_the_same_id(receive: Callable[..., Receiver]) -> None:
    receiver = receive(status(200))
    odd = Message("op.é\u202e;1", "retry_failed", "op", 1, {})
    for _ in range(2):
        hook(receiver).send(odd)
    deliveries = {headers["Conductor-Delivery"] for _, headers, _ in receiver.got}
    assert deliveries == {"op%2E%C3%A9%E2%80%AE;1"}
    assert all(verify(SECRET, headers, body) for _, headers, body in receiver.got)


@pytest.mark.spec("SES-4")
def test_a_forged_or_old_delivery_is_not_verified() -> None:
    body, now = b'{"a":1}', 1_700_000_000
    good = {"Conductor-Delivery": "d", "Conductor-Timestamp": str(now), "Conductor-Signature": sign(SECRET, str(now), "d", body)}
    assert verify(SECRET, good, body, now=now)
    assert verify(SECRET, {name.lower(): value for name, value in good.items()}, body, now=now + 299)
    assert verify(SECRET, good, body, now=now - 299)
    assert not verify(SECRET, good, body, now=now + 301)
    assert not verify(SECRET, good, body, now=now - 301)
    assert not verify(SECRET, good, body + b" ", now=now)
    assert not verify("another secret of length", good, body, now=now)
    for name, value in [
        ("Conductor-Delivery", "e"), ("Conductor-Delivery", ""), ("Conductor-Timestamp", str(now + 1)), ("Conductor-Timestamp", ""),
        ("Conductor-Timestamp", "١٧"), ("Conductor-Timestamp", "1e9"), ("Conductor-Timestamp", "-1"), ("Conductor-Signature", ""),
        ("Conductor-Signature", "v1=é\ud800"), ("Conductor-Signature", good["Conductor-Signature"][:-1]),
    ]:
        assert not verify(SECRET, good | {name: value}, body, now=now), name
        assert not verify(SECRET, {other: kept for other, kept in good.items() if other != name}, body, now=now)


@pytest.mark.spec("SES-4")
def test_the_parts_of_a_signature_cannot_be_shifted() -> None:
    """`printf 1.2.3 | openssl dgst -sha256 -hmac "a secret of some length"` gives the same, so receivers in any language can check it."""
    assert sign(SECRET, "1", "2", b"3") == "v1=cadf5145b9b16ec6f98540bf65c41fbf53197ae48ffdcfe0545ec01cc80eb31e"
    signature = sign(SECRET, "1", "2", b'3.{"a":1}')
    shifted = {"Conductor-Delivery": "2.3", "Conductor-Timestamp": "1", "Conductor-Signature": signature}
    assert signature == sign(SECRET, "1", "2.3", b'{"a":1}')
    assert not verify(SECRET, shifted, b'{"a":1}', now=1)


# What a receiver may answer.


@pytest.mark.spec("SES-4", "ERR-1")
@pytest.mark.parametrize(("code", "error"), [
    (200, None), (202, None), (301, PermanentError), (307, PermanentError), (400, PermanentError), (401, PermanentError),
    (404, PermanentError), (410, PermanentError), (408, TransientError), (425, TransientError), (429, TransientError), (500, TransientError),
    (503, TransientError),
])
def test_the_status_says_whether_a_repeat_can_help(
    receive: Callable[..., Receiver], code: int, error: type[ConductorError] | None,
) -> None:
    other = receive(status(200))
    receiver = receive(status(code, Location=f"http://127.0.0.1:{other.server_port}/"))
    if error is None:
        hook(receiver).send(MESSAGE)
    else:
        with pytest.raises(error, match=str(code)):
            hook(receiver).send(MESSAGE)
    assert len(receiver.got) == 1
    assert other.got == []  # no redirect is followed


def drip(handler: BaseHTTPRequestHandler) -> None:
    """Never silent for long, never ending."""
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nX: ")
    while not handler.server.over.wait(0.02):  # type: ignore[attr-defined]
        handler.wfile.write(b"x")


def silent(handler: BaseHTTPRequestHandler) -> None:
    handler.server.over.wait(30)  # type: ignore[attr-defined]


def flood(handler: BaseHTTPRequestHandler) -> None:
    while not handler.server.over.is_set():  # type: ignore[attr-defined]
        handler.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n" * 1000)


def nonsense(handler: BaseHTTPRequestHandler) -> None:
    handler.wfile.write(b"\x00\xff not http\r\n\r\n")


@pytest.mark.spec("SES-4")
@pytest.mark.parametrize(("answer", "why"), [
    (drip, "TimeoutError"), (silent, "TimeoutError"), (flood, "ConnectionError"), (nonsense, "BadStatusLine"),
])
def test_a_receiver_that_drips_floods_or_is_silent_holds_nobody(receive: Callable[..., Receiver], answer: Any, why: str) -> None:
    receiver, begun = receive(answer), time.monotonic()
    with pytest.raises(TransientError, match=f"no answer: {why}$"):
        hook(receiver, seconds=0.5 if why == "TimeoutError" else 20).send(MESSAGE)
    assert time.monotonic() - begun < 10
    assert webhook._SECONDS == 5


@pytest.mark.spec("SES-4")
def test_a_long_body_is_not_read(receive: Callable[..., Receiver]) -> None:
    written: list[int] = []

    def endless(handler: BaseHTTPRequestHandler) -> None:
        status(200)(handler)
        for _ in range(10_000):
            handler.wfile.write(b"x" * 100_000)
            written.append(1)

    hook(receive(endless)).send(MESSAGE)
    assert len(written) < 5_000


@pytest.mark.spec("SES-4")
def test_a_receiver_that_takes_nothing_holds_nobody() -> None:
    begun = time.monotonic()
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        target = Webhook(f"http://127.0.0.1:{deaf.getsockname()[1]}/", SECRET, allow_private=True, allow_http=True, seconds=0.5)
        with pytest.raises(TransientError):
            target.send(Message("m", "a", "op", 1, {"x": "x" * 20_000_000}))
    assert time.monotonic() - begun < 10


@pytest.mark.spec("SES-4")
def test_nobody_there_is_transient_and_a_name_that_hangs_costs_only_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    with pytest.raises(TransientError, match="ConnectionRefusedError"):
        Webhook(f"http://127.0.0.1:{port}/", SECRET, allow_private=True, allow_http=True).send(MESSAGE)
    hangs = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [hangs.wait(30)])
    begun = time.monotonic()
    with pytest.raises(TransientError, match="TimeoutError"):
        Webhook("https://slow.example/", SECRET, seconds=0.3).send(MESSAGE)
    hangs.set()
    assert time.monotonic() - begun < 10


def test_a_name_nobody_knows_is_transient(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(TransientError, match="gaierror"):
        Webhook("https://nowhere.example/", SECRET).send(MESSAGE)


# Where a webhook must not go.


@pytest.mark.spec("SES-4")
@pytest.mark.parametrize("address", [
    "127.0.0.1", "127.255.255.254", "0.0.0.0", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "192.0.0.8",
    "192.88.99.1", "198.18.0.1", "192.0.2.1", "203.0.113.1", "224.0.0.1", "239.1.2.3", "240.0.0.1", "255.255.255.255", "::", "::1",
    "::ffff:127.0.0.1", "::ffff:7f00:1", "::ffff:8.8.8.8", "::127.0.0.1", "64:ff9b::7f00:1", "64:ff9b:1::1", "2002:7f00:1::", "2001::1",
    "2001:db8::1", "fc00::1", "fd12:3456::1", "fe80::1", "fe80::1%eth0", "fec0::1", "ff02::1", "100::1", "fd00:ec2::254",
])
def test_these_addresses_are_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", [PUBLIC, "8.8.8.8", "2606:4700:4700::1111", "2a00:1450:4001:81b::200e"])
def test_these_addresses_are_public(address: str) -> None:
    assert is_public(address)


@pytest.mark.spec("SES-4", "BAD-1")
@pytest.mark.parametrize("url", [
    "http://example.com/", "file:///etc/passwd", "gopher://example.com/", "ftp://example.com/", "//example.com/", "example.com", "https:/x",
    "https://", "https:///path", "https://user@example.com/", "https://user:pass@example.com/", "https://@example.com/",
    "https://example.com@127.0.0.1/", "https://127.0.0.1/", "https://127.1/", "https://2130706433/", "https://0x7f000001/", "https://0x7f.1/",
    "https://0177.0.0.1/", "https://017700000001/", "https://127.0.0.1./", "https://0/", "https://[::1]/", "https://[::ffff:127.0.0.1]/",
    "https://[::ffff:7f00:1]/", "https://[fe80::1%25eth0]/", "https://[::]/", "https://169.254.169.254/latest/meta-data/", "https://10.0.0.1/",
    "https://192.168.0.1/", "https://100.64.0.1/", "https://[fd00::1]/", "https://[64:ff9b::a00:1]/", "https://134744072/", "https://8.8.010.8/",
    "https://1.2.3.4.5/", "https://example.com:22/", "https://example.com:25/", "https://example.com:0/", "https://example.com:99999/",
    "https://example.com:x/", "https://exa mple.com/", "https://example.com\\@127.0.0.1/", "https://example.com/a\\b", "https://example.com/\r\nX: y",
    "https://ex\u0430mple.com/", "https://①②⑦.0.0.1/", "https://exa%6dple.com/", "https://example.com/#fragment", "https://-x.example/",
    "https://" + "a" * 64 + ".example/", "https://" + "a." * 130 + "example/", "https://[127.0.0.1]/", "https://[::1/", "HTTPS+https://x/",
])
def test_a_hostile_url_is_refused(url: str) -> None:
    with pytest.raises(BadInput) as raised:
        Webhook(url, SECRET)
    assert "pass" not in str(raised.value).replace("password", "")
    with pytest.raises(SettingsError, match="conductor_notify"):
        build([f"webhook+{url}"], SurfaceOptions(secret=SECRET))


@pytest.mark.spec("SES-4")
def test_plain_http_needs_both_flags_and_stays_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for options in ({}, {"allow_private": True}):
        with pytest.raises(BadInput, match="https"):
            Webhook("http://example.com/", SECRET, **options)  # type: ignore[arg-type]
    outside = Webhook("http://example.com/", SECRET, allow_private=True, allow_http=True)
    monkeypatch.setattr(socket, "getaddrinfo", answering([PUBLIC]))
    with pytest.raises(PermanentError, match="plain HTTP"):
        outside.send(MESSAGE)


def answering(*rounds: list[str], calls: list[str] | None = None) -> Callable[..., Any]:
    """A resolver that answers each round once, and the last one from then on."""
    left = list(rounds)

    def resolve(host: str, port: int, *_: Any, **__: Any) -> list[Any]:
        if calls is not None:
            calls.append(host)
        found = left.pop(0) if len(left) > 1 else left[0]
        families = [socket.AF_INET6 if ":" in address else socket.AF_INET for address in found]
        return [(family, socket.SOCK_STREAM, 6, "", (address, port)) for family, address in zip(families, found, strict=True)]

    return resolve


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], list[str]]:
    """Every connection ends at a port of this machine, whatever address was asked for; tells which were."""

    def lay(port: int) -> list[str]:
        asked: list[str] = []

        class Wire(socket.socket):
            def connect(self, address: Any) -> None:
                asked.append(address[0])
                super().connect(("127.0.0.1", port))

        monkeypatch.setattr(webhook.socket, "socket", Wire)
        return asked

    return lay


@pytest.mark.spec("SES-4")
@pytest.mark.parametrize("found", [["127.0.0.1"], ["169.254.169.254"], ["::ffff:127.0.0.1"], [PUBLIC, "10.0.0.1"], ["10.0.0.1", PUBLIC]])
def test_a_name_with_any_private_address_is_not_connected_to(
    receive: Callable[..., Receiver], wire: Callable[[int], list[str]], monkeypatch: pytest.MonkeyPatch, found: list[str],
) -> None:
    receiver = receive(status(200))
    monkeypatch.setattr(socket, "getaddrinfo", answering(found))
    asked = wire(receiver.server_port)
    with pytest.raises(PermanentError, match="not a public address"):
        Webhook("https://hooks.example/", SECRET).send(MESSAGE)
    assert (asked, receiver.got) == ([], [])


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for hooks.example, and for nobody else."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    file = tmp_path_factory.mktemp("tls") / "both.pem"
    key = file.with_name("key.pem")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=hooks.example", "-addext",
         "subjectAltName=DNS:hooks.example", "-keyout", str(key), "-out", str(file)], check=True, capture_output=True)
    file.write_text(file.read_text() + key.read_text())
    return file


def server_side(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


@pytest.mark.spec("SES-4")
def test_a_name_that_changes_its_address_is_asked_once_and_reached_where_it_was_checked(
    receive: Callable[..., Receiver], wire: Callable[[int], list[str]], monkeypatch: pytest.MonkeyPatch, certificate: Path,
) -> None:
    """DNS rebinding: the name answers a public address when it is checked, and this machine's when it is asked again."""
    receiver, calls = receive(status(200), server_side(certificate)), []
    monkeypatch.setattr(socket, "getaddrinfo", answering([PUBLIC], ["127.0.0.1"], calls=calls))
    asked = wire(receiver.server_port)
    trusting = ssl.create_default_context(cafile=str(certificate))
    Webhook("https://hooks.example/x", SECRET, context=trusting).send(MESSAGE)
    assert calls == ["hooks.example"]
    assert asked == [PUBLIC]
    assert receiver.names == ["hooks.example"]
    [(_, headers, body)] = receiver.got
    assert headers["Host"] == "hooks.example"
    assert verify(SECRET, headers, body)


@pytest.mark.spec("SES-4")
@pytest.mark.parametrize(("host", "trusted"), [("hooks.example", False), ("other.example", True)])
def test_a_certificate_must_be_trusted_and_of_the_name(
    receive: Callable[..., Receiver], wire: Callable[[int], list[str]], monkeypatch: pytest.MonkeyPatch, certificate: Path, host: str,
    trusted: bool,
) -> None:
    receiver = receive(status(200), server_side(certificate))
    monkeypatch.setattr(socket, "getaddrinfo", answering([PUBLIC]))
    wire(receiver.server_port)
    context = ssl.create_default_context(cafile=str(certificate)) if trusted else None
    with pytest.raises(PermanentError, match="certificate"):
        Webhook(f"https://{host}/x", SECRET, context=context).send(MESSAGE)
    assert receiver.got == []


@pytest.mark.spec("SES-4")
def test_an_address_that_is_silent_leaves_time_for_the_next(
    receive: Callable[..., Receiver], monkeypatch: pytest.MonkeyPatch, certificate: Path,
) -> None:
    receiver = receive(status(200), server_side(certificate))
    with socket.create_server(("127.0.0.1", 0)) as gone:
        closed = gone.getsockname()[1]
    answers = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port)) for port in (closed, receiver.server_port)]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answers)
    trusting = ssl.create_default_context(cafile=str(certificate))
    Webhook("https://hooks.example/x", SECRET, context=trusting, allow_private=True).send(MESSAGE)
    assert len(receiver.got) == 1


def test_hosts_are_named_as_http_wants_them() -> None:
    for url, expected in [
        ("https://Hooks.Example/", "hooks.example"), ("https://hooks.example:8443/", "hooks.example:8443"),
        ("https://[2606:4700:4700::1111]/", "[2606:4700:4700::1111]"), ("https://8.8.8.8:443/", "8.8.8.8"),
    ]:
        assert Webhook(url, SECRET)._target.host_header == expected


# Building.


@pytest.mark.spec("SES-4")
def test_surfaces_are_built_from_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    text = "log:  webhook+https://hooks.example/T0KEN\napprise:mailto://me:pa55@mail.example"
    built = build(text, SurfaceOptions(secret=SECRET))
    assert [name.rpartition(":")[0] or name for name in built] == ["log", "webhook:hooks.example", "apprise:mailto"]
    assert list(build(text, SurfaceOptions(secret=SECRET))) == list(built)
    assert not any(word in name for name in built for word in ("T0KEN", "pa55", "mail.example"))
    assert len(build(["log:", "log:", "webhook+https://a.example/1", "webhook+https://a.example/2"], SurfaceOptions(secret=SECRET))) == 3
    assert build("") == {}


@pytest.mark.spec("SES-4", "ERR-2")
@pytest.mark.parametrize(("url", "said"), [
    ("slack://T0KEN/x", "begins with none of log:"), ("T0KEN", "begins with none"), ("log:T0KEN", "nothing follows"),
    ("webhook+http://T0KEN.example/", "webhook\\+https"), ("webhook+https://me:T0KEN@x.example/", "user name"),
    ("apprise:T0KEN", "Apprise knows"), ("apprise:json://T0KEN@x", "celery-conductor\\[notify\\]"),
])
def test_a_wrong_surface_is_named_without_its_secrets(url: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(SettingsError, match=f"surface 2 of 2: .*{said}") as raised:
        build(["log:", url], SurfaceOptions(secret=SECRET))
    assert "T0KEN" not in str(raised.value)


@pytest.mark.spec("SES-4")
@pytest.mark.parametrize("secret", ["", "short"])
def test_a_webhook_without_a_real_secret_is_refused(secret: str) -> None:
    with pytest.raises(SettingsError, match="conductor_notify_secret"):
        build("webhook+https://hooks.example/", SurfaceOptions(secret=secret))


@pytest.mark.spec("SES-4")
def test_a_kind_of_surface_can_be_added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surfaces, "_FACTORIES", dict(surfaces._FACTORIES))
    surfaces.register("Pager", lambda url, _options: types.SimpleNamespace(name=url, send=print))  # type: ignore[arg-type,return-value]
    assert list(build("pager:team-a")) == ["pager:team-a"]


@pytest.mark.spec("SES-4")
def test_one_failing_surface_does_not_keep_another_from_being_told(receive: Callable[..., Receiver]) -> None:
    bad, good = receive(status(500)), receive(status(200))
    urls = [f"webhook+http://127.0.0.1:{one.server_port}/" for one in (bad, good)]
    failed = []
    for surface in build(urls, SurfaceOptions(secret=SECRET, allow_private=True, allow_http=True)).values():
        try:
            surface.send(MESSAGE)
        except TransientError:
            failed.append(surface.name)
    assert (len(failed), len(bad.got), len(good.got)) == (1, 1, 1)


# Log and Apprise.


@pytest.mark.spec("SES-4")
def test_the_log_says_ids_and_words_on_one_line(caplog: pytest.LogCaptureFixture) -> None:
    hostile = Message("m", "retry_exhausted", "op", 1, {"capability": "pay\r\nERROR x\x1b[2J\u202e", "error_kind": "transient", "token": "T0KEN"})
    with caplog.at_level(logging.INFO, logger="conductor.notify"):
        LogSurface().send(hostile)
        LogSurface().send(Message("m", "retry_success", "op", 1, {}))
    first, second = caplog.records
    assert (first.levelname, second.levelname) == ("WARNING", "INFO")
    assert first.getMessage().isprintable()
    assert first.getMessage().isascii()
    assert "T0KEN" not in first.getMessage()
    assert json.loads(second.getMessage().removeprefix("notification ")) == {"id": "m", "kind": "retry_success", "operation_id": "op"}


class FakeApprise(types.ModuleType):
    """What we use of Apprise."""

    def __init__(self, *, known: bool = True, sent: bool | Exception = True) -> None:
        super().__init__("apprise")
        self.told: list[dict[str, Any]] = []
        outer = self

        class Apprise:
            def add(self, url: str) -> bool:
                return known

            def notify(self, **said: Any) -> bool:
                outer.told.append(said)
                if isinstance(sent, Exception):
                    raise sent
                return sent

        self.Apprise = Apprise


@pytest.mark.spec("SES-4")
@pytest.mark.parametrize(("module", "error"), [
    (FakeApprise(), None), (FakeApprise(known=False), PermanentError), (FakeApprise(sent=False), TransientError),
    (FakeApprise(sent=TypeError("mailto://me:pa55@x")), TransientError),
])
def test_apprise_is_asked_when_it_is_used(module: FakeApprise, error: type[ConductorError] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "apprise", module)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    [surface] = build("apprise:mailto://me:pa55@mail.example").values()
    if error is None:
        surface.send(MESSAGE)
        [said] = module.told
        assert (said["title"], said["notify_type"]) == ("Conductor: retry exhausted", "failure")
        assert said["body"].splitlines()[:2] == ["operation op", "capability: pay"]
        return
    with pytest.raises(error) as raised:
        surface.send(MESSAGE)
    assert "pa55" not in str(raised.value)
    assert raised.value.__cause__ is None  # a plug-in's own words would stand in the traceback
