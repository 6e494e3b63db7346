"""A webhook: one signed POST of a message to a URL, and what a receiver needs to check it.

Trust: the URL comes from the settings, what its name resolves to does not. So a name is resolved once per delivery, every address it has
must be a public one, and the connection goes to that very address (a second look-up could answer otherwise) while the certificate and the
`Host` are still those of the name. Redirects are not followed: they would lead around all of this. Time and the bytes read are bounded as
a whole, so a receiver that drips holds nobody. A receiver's words never reach a log, only its status.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import io
import json
import queue
import re
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Any, Final, NoReturn, cast
from urllib.parse import quote, urlsplit

from conductor.errors import BadInput, PermanentError, TransientError
from conductor.sessions.inbox import Message

__all__ = ["DELIVERY", "SIGNATURE", "TIMESTAMP", "Webhook", "is_public", "sign", "verify"]

DELIVERY: Final = "Conductor-Delivery"
TIMESTAMP: Final = "Conductor-Timestamp"
SIGNATURE: Final = "Conductor-Signature"
WINDOW_SECONDS: Final = 300

_SECONDS = 5.0  # for everything: name, connection, handshake, request, answer
_ANSWER = 65_536  # bytes read at most; the status stands in the first
_SECRET = 16  # characters at least
_LABEL = r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"(?=.{{1,253}}\Z){_LABEL}(\.{_LABEL})*\Z")
_NUMBER = re.compile(r"(0x[0-9a-f]*|[0-9]+)\Z")
_GLOBAL_V6 = IPv6Network("2000::/3")  # the rest is local, mapped, translated or multicast
_SPECIAL_V4 = tuple(IPv4Network(text) for text in ("192.0.0.0/24", "192.88.99.0/24", "224.0.0.0/4"))


# For receivers.


def sign(secret: str, timestamp: str, delivery: str, body: bytes) -> str:
    """HMAC-SHA256 over `timestamp.delivery.body`. Neither of the first two holds a dot, so nothing can be moved from one to the next."""
    return "v1=" + hmac.new(secret.encode(), b".".join((timestamp.encode(), delivery.encode(), body)), hashlib.sha256).hexdigest()


def verify(secret: str, headers: Mapping[str, str], body: bytes, *, now: float | None = None) -> bool:
    """Whether this request was signed with `secret` within the last five minutes. Also remember `Conductor-Delivery` for as long: the same
    delivery may come twice, from us after a lost answer or from somebody who listened."""
    found = {name.lower(): value for name, value in headers.items()}
    timestamp, delivery = found.get(TIMESTAMP.lower(), ""), found.get(DELIVERY.lower(), "")
    if not re.fullmatch(r"[0-9]{1,12}", timestamp) or not delivery or "." in delivery:
        return False
    if abs((time.time() if now is None else now) - int(timestamp)) > WINDOW_SECONDS:
        return False
    expected = sign(secret, timestamp, delivery, body)
    return hmac.compare_digest(expected.encode(), found.get(SIGNATURE.lower(), "").encode(errors="replace"))


# The guard.


def is_public(address: str) -> bool:
    """Whether an address is of the public internet: not of this machine, its networks, a cloud's metadata, or a translation of those."""
    ip = ip_address(address.partition("%")[0])
    if isinstance(ip, IPv6Address):
        return ip in _GLOBAL_V6 and ip.sixtofour is None and ip.is_global
    return ip.is_global and not any(ip in network for network in _SPECIAL_V4)


@dataclass(frozen=True, slots=True)
class _Target:
    host: str
    port: int
    path: str
    secure: bool

    @property
    def host_header(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.secure else 80) else f"{host}:{self.port}"


def _refuse(problem: str) -> NoReturn:
    raise BadInput(what="webhook", field="url", problem=problem)


def _target(url: str, *, allow_private: bool, allow_http: bool) -> _Target:
    """Take the URL apart. Whatever two parsers could read in two ways is refused."""
    if not re.fullmatch(r"[!-~]+", url) or "\\" in url:
        _refuse("a webhook's URL has only printable ASCII characters and no backslash")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        _refuse("the webhook's URL cannot be read")
    secure = parts.scheme == "https"
    if not secure and not (allow_http and parts.scheme == "http"):
        _refuse("a webhook's URL begins with webhook+https://")
    if "@" in parts.netloc:
        _refuse("a webhook's URL holds no user name and password; the delivery is signed instead")
    if parts.fragment:
        _refuse("a webhook's URL has no fragment")
    host = _host(parts.hostname or "", allow_private=allow_private)
    if port is not None and not allow_private and port != 443 and port < 1024:
        _refuse(f"port {port} belongs to another service; use 443, or one from 1024 on")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return _Target(host, (443 if secure else 80) if port is None else port, path, secure)


def _host(host: str, *, allow_private: bool) -> str:
    """A name, or an address in its one usual form: 2130706433, 0x7f.1 and 0177.0.0.1 all mean 127.0.0.1 to some resolvers."""
    literal: IPv4Address | IPv6Address | None = None
    if ":" in host or _NUMBER.fullmatch(host.rpartition(".")[2]):
        try:
            literal = ip_address(host)
        except ValueError:
            _refuse("the webhook's host is an address in an unusual form")
        if isinstance(literal, IPv6Address) and literal.scope_id:
            _refuse("the webhook's host is an address of this machine's networks")
    elif not _NAME.match(host):
        _refuse("the webhook's URL has no host, or one that is not a plain ASCII name")
    if literal is not None and not allow_private and not is_public(str(literal)):
        _refuse(f"the webhook's host {literal} is not a public address")
    return host


# Sending.


def _left(end: float) -> float:
    left = end - time.monotonic()
    if left <= 0:
        raise TimeoutError("the time for the delivery is over")
    return left


def _resolve(target: _Target, end: float) -> list[Any]:
    """What the name resolves to. The look-up cannot be interrupted, so it has a thread that is left behind when the time is over."""
    answers: queue.SimpleQueue[list[Any] | OSError] = queue.SimpleQueue()

    def ask() -> None:
        try:
            answers.put(list(socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)))
        except OSError as error:
            answers.put(error)

    threading.Thread(target=ask, daemon=True, name="conductor-resolve").start()
    try:
        found = answers.get(timeout=_left(end))
    except queue.Empty:
        raise TimeoutError("its name was not resolved in time") from None
    if isinstance(found, OSError):
        raise found
    return found


class _Answer(io.RawIOBase):
    """What a receiver answers: each read takes only what is left of the time, and reading ends at a limit."""

    def __init__(self, sock: socket.socket, end: float) -> None:
        self._sock, self._end, self._room = sock, end, _ANSWER

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self._room <= 0:
            raise ConnectionError("the answer is too long")
        self._sock.settimeout(_left(self._end))
        count = self._sock.recv_into(memoryview(buffer)[: self._room])
        self._room -= count
        return count


class _Bounded:
    """The connection as `http.client` sees it. A socket's own time limit begins anew with every byte; here it is one for everything."""

    def __init__(self, sock: socket.socket, end: float) -> None:
        self._sock, self._end = sock, end

    def sendall(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            self._sock.settimeout(_left(self._end))
            rest = rest[self._sock.send(rest[:16_384]):]

    def makefile(self, *_: Any) -> io.BufferedReader:
        return io.BufferedReader(_Answer(self._sock, self._end))

    def close(self) -> None:
        self._sock.close()


class Webhook:
    """Tells one URL. `allow_private` lets it reach an intranet; `allow_http` is for tests, and only for this machine."""

    def __init__(
        self, url: str, secret: str, *, allow_private: bool = False, allow_http: bool = False, context: ssl.SSLContext | None = None,
        seconds: float = _SECONDS,
    ) -> None:
        if len(secret) < _SECRET:
            _refuse(f"webhooks are signed: set conductor_notify_secret to {_SECRET} characters or more")
        self._target = _target(url, allow_private=allow_private, allow_http=allow_http)
        self._secret, self._private, self._context, self._seconds = secret, allow_private, context, seconds
        self.name = f"webhook:{self._target.host}:{hashlib.blake2b(url.encode(), digest_size=4).hexdigest()}"

    def send(self, message: Message) -> None:
        """Deliver once. The delivery id is the message's, in every attempt; only the timestamp is new."""
        said = {"id": message.id, "kind": message.kind, "operation_id": message.operation_id, "at": message.at, "body": message.body}
        body = json.dumps(said, separators=(",", ":"), allow_nan=False).encode()
        delivery, timestamp = quote(message.id, safe=":@;").replace(".", "%2E"), str(int(time.time()))
        headers = {
            "Host": self._target.host_header, "User-Agent": "conductor", "Content-Type": "application/json", "Connection": "close",
            DELIVERY: delivery, TIMESTAMP: timestamp, SIGNATURE: sign(self._secret, timestamp, delivery, body),
        }
        try:
            status = self._post(body, headers, time.monotonic() + self._seconds)
        except ssl.SSLCertVerificationError as error:
            raise PermanentError(f"{self.name}: its certificate is not valid for {self._target.host}: {error.verify_message}") from error
        except (OSError, http.client.HTTPException) as error:
            raise TransientError(f"{self.name}: no answer: {type(error).__name__}") from error
        self._judge(status)

    def _post(self, body: bytes, headers: Mapping[str, str], end: float) -> int:
        connection = http.client.HTTPConnection(self._target.host, self._target.port)
        connection.sock = cast("Any", _Bounded(self._connected(end), end))
        try:
            connection.request("POST", self._target.path, body=body, headers=headers)
            return connection.getresponse().status
        finally:
            connection.close()

    def _connected(self, end: float) -> socket.socket:
        """Connect to an address that was checked, the first that answers."""
        found = _resolve(self._target, end)
        for *_, address in found:
            self._check(address[0])
        last: OSError = ConnectionError("its name has no address")
        for number, (family, kind, protocol, _, address) in enumerate(found):
            sock = socket.socket(family, kind, protocol)
            try:
                sock.settimeout(_left(end) / (len(found) - number))  # an address that is silent leaves time for the next
                sock.connect(address)
                return self._secured(sock, end)
            except OSError as error:
                sock.close()
                last = error
        raise last

    def _secured(self, sock: socket.socket, end: float) -> socket.socket:
        if not self._target.secure:
            return sock
        sock.settimeout(_left(end))
        return (self._context or ssl.create_default_context()).wrap_socket(sock, server_hostname=self._target.host)

    def _check(self, address: str) -> None:
        if not self._private and not is_public(address):
            raise PermanentError(f"{self.name}: it resolves to {address}, which is not a public address; nothing was sent")
        if not self._target.secure and not ip_address(address).is_loopback:
            raise PermanentError(f"{self.name}: plain HTTP goes to this machine only, and it resolves to {address}; nothing was sent")

    def _judge(self, status: int) -> None:
        if 200 <= status < 300:
            return
        if status in (408, 425, 429) or status >= 500 or status < 200:
            raise TransientError(f"{self.name}: it answered {status}")
        why = "; redirects are not followed, name the final URL" if 300 <= status < 400 else ""
        raise PermanentError(f"{self.name}: it answered {status}{why}")
