"""The catalogue of bad input and attacks on the service, row by row.

| rows | proven in |
|---|---|
| S1–S9, S15, S17, S19, S20, S45, S55 | here |
| S6, S44 | here: limits in bytes, seconds and connections, on a real port |
| S10 | `tests/unit/test_declare_graph.py`, `test_declare_nodes.py`: a graph is code; no route takes one, so none can come by HTTP |
| S13, S14 | `test_service_runs.py` |
| S16 | here: no filter is a pattern |
| S18, S38 | `test_service_matrix.py`, generated from the application |
| S39, S41, S46 | `test_service_access.py` |
| S40 | here: answers are JSON that no browser takes for a page (`nosniff`, CSP `default-src 'none'`); no route renders HTML |
| S47 | here and in `tests/acceptance/test_serve.py`: a line of the log is one line |
| S48 | here: a canary in tokens, URLs, inputs, errors |
| S53 | here: settings are `NAME=value`, never code; `--` ends options (`tests/unit/test_settings.py`, `tests/integration/test_cli.py`) |

S11 and S12 concern declarations (`tests/unit/test_declare_options.py`); S21–S37, S49–S52 and S54 are not about the service.
"""

from __future__ import annotations

import json
import logging
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from conductor.declare import registry
from conductor.errors import redact
from conductor.service.errors import BadJson
from conductor.service.limits import read_json
from tests.support.bureau import Bureau
from tests.support.http import Api
from tests.support.rawhttp import RawServer, request
from tests.support.server import ValkeyServer

pytestmark = pytest.mark.spec("BAD-1", "SVC-2")

CANARY = "cdr_c4n4ryc4n4ryc4n4ryc4n4ryc4n4ryc4n4ryc4n4ry"


@pytest.fixture
def bureau(valkey: ValkeyServer, namespace: str, clean_keys: None) -> Iterator[Bureau]:
    with registry.isolated():
        yield Bureau(valkey.url(), namespace, service_max_body_bytes=65_536, service_body_seconds=0.6)


@pytest.fixture
def api(bureau: Bureau) -> Api:
    return bureau.api


@pytest.fixture
def raw(bureau: Bureau) -> Iterator[RawServer]:
    server = RawServer(bureau.conductor, patience=0.6, most=20).start()
    yield server
    server.close()


def start(value: str) -> bytes:
    return f'{{"workflow": "cli_orders", "input": {value}}}'.encode()


def nothing_was_started(bureau: Bureau) -> bool:
    return bureau.api.get("/v1/runs")["runs"] == []


# What is no JSON, or means two things (S2–S5, S7, S8, S19).


@pytest.mark.parametrize("body", [
    b"", b" ", b"{", b"[1,]", b"{'a': 1}", b"nul", b'{"a": 1} {"b": 2}', b"\xef\xbb\xbf{}", b"\xff\xfe{\x00}\x00", b'{"a": "\xff"}', b'{"a": "\xed\xa0\x80"}',
    start("NaN"), start("Infinity"), start("-Infinity"), start('{"number": 1e400}'), start('{"number": -1e400}'),
    start('{"number": 1, "number": 2}'), b'{"workflow": "a", "workflow": "b"}', start('{"note": "\\ud800"}'), start('{"note": "\\udc00\\ud800"}'),
    start("[" * 150 + "]" * 150), start('{"a":' * 150 + "1" + "}" * 150), b"[" * 60_000, b'{"a":' * 10_000, start("1" * 5000), start('"\x01"'), start("01"),
    b"x" * 60_000, b'"' * 60_001,
])
def test_a_body_that_has_no_one_meaning_is_refused(bureau: Bureau, api: Api, body: bytes) -> None:
    answer = api.http.post("/v1/runs", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code in (400, 422), (body[:80], answer.text)
    assert answer.json()["error"]["code"] in ("bad_json", "bad_input")
    assert nothing_was_started(bureau)


@pytest.mark.parametrize(("text", "deep"), [
    ("[" * 100 + "]" * 100, True), ("[" * 101 + "]" * 101, False), ('"' + "[" * 5000 + '"', True), ('"' + '\\"[' * 5000 + '"', True),
    ("[" + "[],"*5000 + "1]", True), ('{"a":' * 100 + "1" + "}" * 100, True), ('{"a":' * 101 + "1" + "}" * 101, False),
])
def test_depth_is_counted_outside_of_texts(text: str, deep: bool) -> None:
    if deep:
        read_json(text.encode())
    else:
        with pytest.raises(BadJson, match="levels deep"):
            read_json(text.encode())


def test_reading_a_hostile_body_takes_time_in_proportion_to_its_size() -> None:
    def seconds(body: bytes) -> float:
        began = time.perf_counter()
        try:
            read_json(body)
        except BadJson:
            pass
        return time.perf_counter() - began

    for hostile in (b'"' + b'\\"' * 500_000, b"[" * 1_000_000, b'{"' + b"[" * 1_000_000, b'"\\' * 300_000, b'["' * 300_000, b'"a' * 300_000):
        assert seconds(hostile) < 2, hostile[:20]


@pytest.mark.parametrize("value", ['"12"', "true", "1.0", "1.5", "null", "[1]", '{"number": "1"}', '{"number": true}', '{"number": 1.0}', '{"bad": 1, "number": 1}'])
def test_types_are_taken_as_they_are(bureau: Bureau, api: Api, value: str) -> None:
    answer = api.http.post("/v1/runs", content=start(value), headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "bad_input"), answer.text
    assert nothing_was_started(bureau)


@pytest.mark.parametrize("number", [0, -1, 2**53, 2**53 + 1, 2**63, 10**17 + 1, -(10**30), 10**200])
def test_large_numbers_come_back_as_they_were_sent(bureau: Bureau, api: Api, number: int) -> None:
    answer = api.ask("POST", "/v1/runs", {"workflow": "cli_orders", "input": {"number": number}})
    if answer.status_code == 201:
        bureau.drain()
        shown = api.get(f"/v1/runs/{answer.json()['run_id']}?values=true")
        assert (shown["input"]["number"], shown["result"]) == (number, number * 2 + 1)
    else:
        assert answer.json()["error"]["code"] == "bad_input"


@pytest.mark.parametrize("text", ["a\x00b", "a\x07b", "a\x1b]52;c;x\x07", "a\r\nb", "\u2028", "\x7f", "\x85", "x" * 10_000])
@pytest.mark.parametrize("field", ["key", "session", "queue", "lane", "workflow", "tags"])
def test_names_have_no_control_characters_and_no_endless_length(bureau: Bureau, api: Api, field: str, text: str) -> None:
    body = {"workflow": "cli_orders", "input": {"number": 1}, field: [text] if field == "tags" else text}
    assert api.refused("POST", "/v1/runs", body)[0] in (404, 422)
    assert nothing_was_started(bureau)


@pytest.mark.parametrize("text", ["*", "a:b", "{x}", "}{", "../x", "a;b", "a%b", "\u202etxt.exe", "\u200b", "é", "日本", "🤖", "'; DROP TABLE runs; --", "a b", "-x", "@x"])
def test_what_looks_like_a_pattern_or_a_path_is_only_a_name(bureau: Bureau, api: Api, text: str) -> None:
    run_id = bureau.run(key=text, session=text, tags=[text.replace(",", "")])
    other = bureau.run(key="other", session="other", tags=["other"])
    for name in ("key", "session", "tag"):
        found = api.told(api.ask("GET", "/v1/runs", params={name: text}))["runs"]
        assert [row["run_id"] for row in found] == [run_id], name
    assert api.post("/v1/runs", {"workflow": "cli_orders", "input": {"number": 3}, "key": text, "session": text})["run_id"] == run_id
    assert bureau.state(other) == "running"


def test_no_filter_is_a_pattern(bureau: Bureau, api: Api) -> None:
    bureau.run(key="aaaa", tags=["aaaa"])
    for hostile in ("a*", "[a-z]*", "(a+)+$", ".*", "a%", "?" * 200, "a" * 100 + "!"):
        began = time.perf_counter()
        for name in ("key", "tag", "session", "workflow", "waiting_for", "step"):
            answer = api.ask("GET", "/v1/runs", params={name: hostile})
            assert answer.status_code == 422 or answer.json()["runs"] == [], (name, hostile)
        assert time.perf_counter() - began < 2


# How it comes (S6, S19, S44).


@pytest.mark.parametrize("kind", ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "application/json; charset=utf-16", "application/xml", "*/*"])
def test_a_body_is_json_or_nothing(bureau: Bureau, raw: RawServer, kind: str) -> None:
    status, _, told = raw.say(request("POST", "/v1/runs", start('{"number": 1}'), kind=kind))
    assert (status, told["error"]["code"]) == (415, "unsupported_media_type")
    assert nothing_was_started(bureau)


@pytest.mark.parametrize("kind", ["application/json", "application/json; charset=utf-8", 'Application/JSON;charset="UTF-8"'])
def test_json_is_json_however_it_is_spelled(raw: RawServer, kind: str) -> None:
    assert raw.say(request("POST", "/v1/runs", start('{"number": 1}'), kind=kind))[0] == 201


@pytest.mark.parametrize("header", ["Content-Encoding: gzip", "Content-Encoding: br", "Content-Encoding: identity, gzip"])
def test_a_packed_body_is_not_unpacked(raw: RawServer, header: str) -> None:
    assert raw.say(request("POST", "/v1/runs", start('{"number": 1}'), header))[0] == 415


def test_a_body_that_says_it_is_too_large_is_refused_before_it_is_read(raw: RawServer) -> None:
    began = time.monotonic()
    status, headers, told = raw.say(request("POST", "/v1/runs", b"", "Content-Length: 100000000000", length=False))
    assert (status, told["error"]["code"], headers["connection"]) == (413, "too_large", "close")
    assert time.monotonic() - began < 0.5
    assert raw.say(request("POST", "/v1/runs", b"", f"Content-Length: {'9' * 400}", length=False))[0] in (400, 413)


def test_an_endless_body_costs_no_memory_and_is_cut_off(raw: RawServer) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with raw.connect() as connection:
        connection.sendall(request("POST", "/v1/runs", b"", "Transfer-Encoding: chunked", length=False))
        chunk, sent = b"10000\r\n" + b" " * 65_536 + b"\r\n", 0
        try:
            for _ in range(1600):  # a hundred megabytes, if they are taken
                connection.sendall(chunk)
                sent += len(chunk)
        except OSError:
            pass
        assert sent < 20_000_000
        try:
            assert raw.answer(connection)[0] in (0, 413)
        except OSError:
            pass
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000


def test_a_slow_body_and_a_slow_head_are_given_up(raw: RawServer) -> None:
    began = time.monotonic()
    status, _, told = raw.say(request("POST", "/v1/runs", b"", "Content-Length: 10", length=False), more=b"{", pause=0.1)
    assert (status, told["error"]["code"]) == (408, "too_slow")
    for drip in (b"GET /v1/health HTTP/1.1\r\nHost: x\r\n", b"\r\n", b"G"):
        with raw.connect() as connection:
            connection.sendall(drip)
            assert raw.answer(connection)[0] == 0
    with raw.connect() as connection:  # the second request of a connection too
        connection.sendall(b"GET /v1/health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert raw.answer(connection)[0] == 200
        connection.sendall(b"GET /v1/hea")
        assert raw.answer(connection)[0] == 0
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("data", [
    b"GET /" + b"a" * 10_000 + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    b"GET /v1/health?" + b"a" * 10_000 + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    b"GET /v1/health HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"a" * 50_000 + b"\r\n\r\n",
    b"GET /v1/health HTTP/1.1\r\nHost: 127.0.0.1\r\n" + b"X: y\r\n" * 200 + b"\r\n",
    b"GET /v1/health HTTP/1.1\r\nHost: 127.0.0.1\r\n" + b"X: y\r\n" * 40_000,
    b"GET /v1/health HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"a" * 200_000,
    b"GET /" + b"a" * 200_000,
])
def test_heads_are_bounded(raw: RawServer, data: bytes) -> None:
    status, _, told = raw.say(data)
    assert status in (413, 431), status
    assert told["error"]["code"] == "too_large"


@pytest.mark.parametrize("data", [
    request("POST", "/v1/runs", start('{"number": 1}'), "Transfer-Encoding: chunked"),
    request("POST", "/v1/runs", b"0\r\n\r\n", "Transfer-Encoding: chunked", "Content-Length: 5", length=False),
    request("POST", "/v1/runs", b"", "Content-Length: 5", "Content-Length: 6", length=False), request("POST", "/v1/runs", b"", "Content-Length: -1", length=False),
    request("POST", "/v1/runs", b"zz\r\n", "Transfer-Encoding: chunked", length=False),
    b"GET /v1/health HTTP/1.1\r\nHost: a\r\nX: a\rb\r\n\r\n", b"GET /v1/health HTTP/1.1\r\nHost: a\r\n X: folded\r\n\r\n", b"GET /v1/health HTTP/1.1\r\nHo st: a\r\n\r\n",
    b"GET /v1/health HTTP/9.9\r\nHost: a\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00", b"GET /v1/\xff\xfe HTTP/1.1\r\nHost: a\r\n\r\n", b"GE\x00T / HTTP/1.1\r\n\r\n",
])
def test_http_that_has_two_meanings_or_none_is_refused(bureau: Bureau, raw: RawServer, data: bytes) -> None:
    status, _, told = raw.say(data)
    assert status in (0, 400), (status, told)
    assert status == 0 or told["error"]["code"] == "bad_request"
    assert nothing_was_started(bureau)
    assert raw.say(b"GET /v1/health HTTP/1.1\r\nHost: a\r\n\r\n")[0] == 200


def test_connections_are_bounded_and_those_that_are_there_go_on(raw: RawServer) -> None:
    first = raw.connect()
    held = [raw.connect() for _ in range(25)]
    try:
        held[-1].sendall(b"GET /v1/health HTTP/1.1\r\nHost: a\r\n\r\n")
        status, headers, told = raw.answer(held[-1])
        assert (status, told["error"]["code"], headers["connection"]) == (503, "too_many_connections", "close")
        first.sendall(b"GET /v1/health HTTP/1.1\r\nHost: a\r\n\r\n")
        assert raw.answer(first)[0] == 200
    finally:
        for connection in (first, *held):
            connection.close()


def test_what_a_proxy_might_say_is_not_believed(bureau: Bureau, raw: RawServer) -> None:
    """No answer is built from `Host`, and an address in `X-Forwarded-For` is nobody's."""
    headers = ("X-Forwarded-Proto: https", "X-Forwarded-Host: evil.example", "X-Forwarded-For: 127.0.0.1")
    assert raw.say(request("POST", "/v1/runs", start('{"number": 1}'), *headers))[0] == 401
    data = request("POST", "/v1/runs", start('{"number": 1}'))
    status, told_headers, _ = raw.say(data)
    assert status == 201
    assert told_headers["location"].startswith("/v1/runs/")
    assert raw.say(data.replace(b"Host: 127.0.0.1", b"Host: evil.example"))[0] == 401
    secret = Api(bureau.conductor).new_token("ci")
    raw.app.state.access.keyring.expire()
    answer = raw.say(data.replace(b"Host: 127.0.0.1", b"Host: evil.example\r\nAuthorization: Bearer " + secret.encode()))
    assert answer[0] == 201
    assert "evil.example" not in str(answer)


def test_a_slash_too_many_leads_nobody_to_another_host_and_is_no_deed(bureau: Bureau, raw: RawServer) -> None:
    """A redirect would be built from `Host`, and a program would take its token there."""
    secret = Api(bureau.conductor).new_token("ci")
    raw.app.state.access.keyring.expire()
    sign = f"Authorization: Bearer {secret}"
    for method, path in [("POST", "/v1/runs/"), ("GET", "/v1/runs/"), ("GET", "/v1/sessions/ann/inbox/"), ("GET", "/metrics/"), ("GET", "/v1/health/")]:
        data = request(method, path, start('{"number": 1}') if method == "POST" else b"", sign, kind="application/json" if method == "POST" else "")
        status, headers, told = raw.say(data.replace(b"Host: 127.0.0.1", b"Host: evil.example"))
        assert (status, told["error"]["code"]) == (404, "unknown_route"), path
        assert "location" not in headers
    assert bureau.engine.store.deeds() == []


@pytest.mark.parametrize(("sent", "session"), [
    ("a%2Fb", "a/b"), ("a%2fb", "a/b"), ("%252F", "%2F"), ("a%2F%252F", "a/%2F"), ("%2F..%2F..%2Fetc", "/../../etc"), ("%C3%A9%2Fx", "\u00e9/x"),
])
def test_a_name_in_a_path_is_decoded_once(raw: RawServer, sent: str, session: str) -> None:
    status, _, told = raw.say(request("GET", f"/v1/sessions/{sent}/grants", kind=""))
    assert (status, told["session"]) == (200, session)
    assert raw.say(request("GET", f"/v1%2Fsessions/{sent}/grants", kind=""))[0] == 404


def test_a_websocket_is_nobodys(raw: RawServer) -> None:
    upgrade = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Version: 13")
    assert raw.say(request("GET", "/v1/events", b"", *upgrade, kind=""))[0] in (400, 404, 406, 422)


# What comes out (S20, S40, S47, S48, S55).


@pytest.mark.parametrize("payload", [
    "<script>alert(1)</script>", "javascript:alert(1)", '"><img src=x onerror=alert(1)>', "\u2028</script>", "{{7*7}}", "${7*7}", "<!--", "]]>",
])
def test_nothing_that_was_sent_becomes_a_page(bureau: Bureau, api: Api, payload: str) -> None:
    run_id = api.post("/v1/runs", {"workflow": "cli_orders", "input": {"number": 1, "note": payload.replace("\u2028", "")}})["run_id"]
    for answer in (
        api.ask("GET", f"/v1/runs/{run_id}?values=true"), api.ask("GET", "/v1/runs", params={"statuss": payload}),
        api.ask("GET", f"/v1/runs/{payload.replace('/', '').replace('?', '')}"), api.ask("POST", f"/v1/runs/{run_id}/cancel", {"reason": payload}),
    ):
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "default-src 'none'" in answer.headers["content-security-policy"]


def test_errors_of_steps_are_cut_and_never_break_an_answer(bureau: Bureau, api: Api) -> None:
    run_id = bureau.done({"number": 1, "bad": True})
    client, key = bureau.engine.store.client(), bureau.engine.store.keys.run(run_id, "err")
    for name in client.hkeys(key):
        client.hset(key, name, json.dumps({"type": "x.Y", "message": "\x1b]52;c;x\x07\r\n" + "é" * 1_000_000, "kind": "permanent"}))
    for path in ("", "/outcome"):
        assert len(api.ask("GET", f"/v1/runs/{run_id}{path}").content) < 20_000


def test_metrics_have_fixed_labels_whatever_was_asked_for(bureau: Bureau, api: Api) -> None:
    run_id = bureau.run(key="secretkey", session="annsession", tags=["redtag"])
    for path in ("/v1/nothing/here", "/v1/runs/xyzzy", f"/v1/runs/{run_id}", "/v1/runs?statu=plugh"):
        api.ask("GET", path)
    api.ask("BREW", "/v1/runs")
    api.ask("GET", "/x" * 1000)
    text = api.ask("GET", "/metrics").text
    for leaked in (run_id, "secretkey", "annsession", "redtag", "xyzzy", "plugh", "BREW", "nothing/here", bureau.engine.store.namespace):
        assert leaked not in text, leaked
    labels = {part.split("=")[0] for line in text.splitlines() if "{" in line for part in line[line.index("{") + 1 : line.index("}")].split(",")}
    assert labels <= {"queue", "state", "sweep", "method", "route", "status", "version", "kind"}
    assert 'conductor_ready_steps{queue="celery"} 1.0' in text
    assert 'conductor_runs{state="running"} 1.0' in text
    assert 'route="unmatched"' in text


def test_secrets_appear_nowhere(
    bureau: Bureau, valkey: ValkeyServer, namespace: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str],
) -> None:
    """A token, the password in the store's URL, a password in an error: in no answer, log, metric, document, and not in the store."""
    caplog.set_level(logging.DEBUG)
    for name in ("httpx", "httpx2"):  # the asking side, which logs what it asks
        caplog.set_level(logging.WARNING, name)
    url = valkey.url().replace("redis://", f"redis://:{CANARY}@", 1)
    with registry.isolated():
        away = Bureau("redis://127.0.0.1:1/0".replace("redis://", f"redis://:{CANARY}@"), namespace)
        away.engine.store.give_up_after(0.01)
        seen = [away.api.ask(method, path, body).text for method, path, body in (
            ("GET", "/v1/ready", None), ("POST", "/v1/runs", {"workflow": "cli_orders", "input": {"number": 1}}), ("GET", "/v1/runs", None))]
    api = bureau.api
    secret = api.with_token("ci")
    run_id = bureau.run(value={"number": 1, "note": "fine"})
    for method, path, body in (
        ("GET", f"/v1/runs/{run_id}", None), ("GET", "/v1/ready", None), ("GET", "/metrics", None), ("GET", "/v1/openapi.json", None),
        ("GET", "/v1/audit", None), ("GET", "/v1/me", None), ("POST", f"/v1/runs/{run_id}/cancel", {"reason": f"token={secret}"}),
        ("POST", "/v1/runs", {"workflow": secret}), ("GET", f"/v1/runs/{secret}", None), ("GET", f"/v1/runs?key={url}", None),
        ("POST", f"/v1/runs/{run_id}/signal", {"name": f"redis://ann:{CANARY}@db"}), ("GET", f"/v1/runs/{run_id}/outcome", None),
        ("POST", "/v1/login", {"token": secret}),
    ):
        answer = api.ask(method, path, body)
        seen.append(answer.text.replace(f'"key": "{url}"', "") + str(answer.headers))
    store = bureau.engine.store
    seen += [str(store.client().dump(key)) for key in store.client().scan_iter(f"conductor:{{{namespace}:*") if ":caller:" not in key]
    seen += [caplog.text, *capfd.readouterr()]
    for place, text in enumerate(seen):
        assert CANARY not in text, (place, text)
        assert secret not in text, (place, text)


def test_tokens_of_ours_are_redacted_wherever_they_stand() -> None:
    assert redact(f"no such run {CANARY}, or x/{CANARY}?") == "no such run cdr_***, or x/cdr_***?"


# The command line (S53).


@pytest.mark.parametrize("arguments", [
    ["show", "--", "--help"], ["show", "--", "-rf"], ["show", "; touch hacked"], ["show", "$(touch hacked)"], ["tokens", "add", "--", "-x"],
    ["tokens", "add", "$(touch hacked)"], ["tokens", "revoke", "../x"],
])
def test_arguments_are_words_and_never_commands(bureau: Bureau, arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = bureau.call(*arguments)
    assert result.exit_code in (1, 2, 3), result.output
    assert list(tmp_path.iterdir()) == []
    assert bureau.engine.store.tokens() == []


def test_settings_in_the_environment_are_values_and_never_code(tmp_path: Path) -> None:
    environment = {"CONDUCTOR_SERVICE_PORT": "__import__('os').system('touch hacked')", "PATH": "", "PYTHONPATH": str(Path.cwd())}
    code = "from conductor.settings import Settings; Settings.load()"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert "SettingsError" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_quotas_bound_what_one_request_may_ask_for(api: Api) -> None:
    """S15: a start is bounded in tags, names and size; how many runs there may be is said by lanes (429) and by memory (503)."""
    base = {"workflow": "cli_orders", "input": {"number": 1}}
    assert api.refused("POST", "/v1/runs", {**base, "tags": [f"t{n}" for n in range(33)]})[0] == 422
    assert api.refused("POST", "/v1/runs", {**base, "key": "k" * 513})[0] == 422
    assert api.refused("POST", "/v1/runs", {**base, "input": {"number": 1, "note": "x" * 70_000}}) == (413, "too_large")


