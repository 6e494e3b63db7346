"""Settings: where a value comes from, which are refused and how, and where the state is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from hypothesis import given
from hypothesis import strategies as st

from conductor.errors import SettingsError
from conductor.locations import EMBEDDED, is_redis, masked, native
from conductor.settings import Settings, unknown_variables


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No variable and no `.env` of the developer's machine."""
    for name in [name for name in os.environ if name.upper().startswith("CONDUCTOR_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def refused(conf: dict[str, Any] | None = None, **code: Any) -> SettingsError:
    with pytest.raises(SettingsError) as caught:
        Settings.load(conf, **code)
    return caught.value


@pytest.mark.spec("SET-1")
def test_code_beats_environment_beats_dotenv_beats_conf_beats_default(monkeypatch: pytest.MonkeyPatch) -> None:
    conf = {"conductor_partitions": 4}
    assert (Settings.load().partitions, Settings.load().source("partitions")) == (16, "default")
    loaded = Settings.load(conf)
    assert (loaded.partitions, loaded.source("partitions")) == (4, "app.conf conductor_partitions")
    Path(".env").write_text("CONDUCTOR_PARTITIONS=5\nOTHER=1\n")
    loaded = Settings.load(conf)
    assert (loaded.partitions, loaded.source("partitions")) == (5, ".env CONDUCTOR_PARTITIONS")
    monkeypatch.setenv("CONDUCTOR_PARTITIONS", "6")
    loaded = Settings.load(conf)
    assert (loaded.partitions, loaded.source("partitions")) == (6, "environment CONDUCTOR_PARTITIONS")
    loaded = Settings.load(conf, partitions=7)
    assert (loaded.partitions, loaded.source("partitions")) == (7, "code")
    assert loaded.sources["partitions"] == "code"


@pytest.mark.spec("SET-1")
def test_an_empty_variable_and_a_none_are_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONDUCTOR_REDIS_URL", "")
    loaded = Settings.load({"conductor_redis_url": "redis://conf/0"}, redis_url=None)
    assert (loaded.redis_url, loaded.source("redis_url")) == ("redis://conf/0", "app.conf conductor_redis_url")


@pytest.mark.spec("SET-1")
def test_a_celery_app_and_a_django_style_app_both_configure() -> None:
    plain = Celery("plain", set_as_current=False)
    plain.conf.conductor_heartbeat_seconds = 3
    assert Settings.load(plain.conf).heartbeat_seconds == 3

    class DjangoSettings:
        CELERY_CONDUCTOR_HEARTBEAT_SECONDS = 4
        CELERY_BROKER_URL = "redis://broker/0"

    django = Celery("django", set_as_current=False)
    django.config_from_object(DjangoSettings, namespace="CELERY")
    loaded = Settings.load(django.conf)
    assert (loaded.heartbeat_seconds, loaded.source("heartbeat_seconds")) == (4, "app.conf conductor_heartbeat_seconds")


@pytest.mark.spec("SET-1", "ERR-2")
def test_an_unknown_name_is_refused_with_the_nearest_one() -> None:
    error = refused({"conductor_redis_ur": "redis://x"})
    assert error.setting == "conductor_redis_ur"
    assert "did you mean conductor_redis_url?" in str(error)
    assert "did you mean partitions?" in str(refused(partitons=3))
    misspelt = Celery("a", set_as_current=False)
    misspelt.conf.conductor_stepp_lease_seconds = 3
    with pytest.raises(SettingsError, match="conductor_step_lease_seconds"):
        Settings.load(misspelt.conf)


def test_a_foreign_variable_is_only_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONDUCTOR_REDS_URL", "redis://x")
    assert Settings.load().redis_url is None
    environ = {"CONDUCTOR_REDS_URL": "", "CONDUCTOR_FAILPOINTS": "", "CONDUCTOR_REDIS_URL": "", "PATH": ""}
    assert unknown_variables(environ) == ["CONDUCTOR_REDS_URL (did you mean CONDUCTOR_REDIS_URL?)"]


@pytest.mark.spec("SET-1", "ERR-2")
@pytest.mark.parametrize(
    ("code", "setting", "telling"),
    [
        ({"partitions": 0}, "conductor_partitions", "greater than or equal to 1"),
        ({"partitions": 257}, "conductor_partitions", "less than or equal to 256"),
        ({"partitions": "many"}, "conductor_partitions", "'many' (code)"),
        ({"namespace": "a:b"}, "conductor_namespace", "'a:b'"),
        ({"namespace": "{a}"}, "conductor_namespace", "'{a}'"),
        ({"namespace": "a" * 65}, "conductor_namespace", "pattern"),
        ({"durability": "sometimes"}, "conductor_durability", "'always', 'everysec', 'replicated' or 'none'"),
        ({"due_sweep_seconds": float("nan")}, "conductor_due_sweep_seconds", "finite"),
        ({"heartbeat_seconds": 7.5}, "conductor_step_lease_seconds", "raise conductor_step_lease_seconds above 15"),
        ({"step_lease_seconds": 10}, "conductor_step_lease_seconds", "two heartbeats of 5 s (default)"),
        ({"watchdog_deaf_seconds": 30}, "conductor_watchdog_deaf_seconds", "set it to 40 or more"),
        ({"default_queue": "q", "sweeps_queue": "q"}, "conductor_sweeps_queue", "a queue of their own"),
        ({"poison_losses": 0}, "conductor_poison_losses", "0 (code)"),
    ],
)
def test_a_wrong_value_names_setting_value_source_and_remedy(code: dict[str, Any], setting: str, telling: str) -> None:
    error = refused(**code)
    assert error.setting == setting
    assert telling in str(error)
    assert error.source
    assert error.remedy in str(error)


def test_the_source_of_a_wrong_value_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONDUCTOR_PARTITIONS", "zero")
    assert "'zero' (environment CONDUCTOR_PARTITIONS)" in str(refused())


@pytest.mark.spec("ACT-4")
def test_the_namespace_is_the_apps_name_unless_set() -> None:
    named = Settings.load(app_name="my shop/2")
    assert (named.namespace, named.source("namespace")) == ("my-shop-2", "default: the app's name")
    assert Settings.load({"conductor_namespace": "prod"}, app_name="shop").namespace == "prod"
    assert Settings.load(app_name=None).namespace == "conductor"
    assert Settings.load(app_name="__main__", namespace="x").namespace == "x"
    with pytest.raises(SettingsError, match="conductor_namespace"):
        Settings.load(app_name="__main__")


@pytest.mark.spec("SET-1", "ERR-2")
def test_secrets_are_masked_when_shown() -> None:
    loaded = Settings.load(redis_url="redis://user:s3cret@host:6379/0")
    shown = {name: (value, source) for name, value, source in loaded.describe()}
    assert shown["redis_url"] == ("redis://***@host:6379/0", "code")
    assert set(shown) == set(Settings.model_fields)
    with pytest.raises(SettingsError) as caught:
        Settings.load(redis_url="http://user:s3cret@host").state_url(None, ready_made=False)
    assert "s3cret" not in str(caught.value) + repr(caught.value.details)


@given(st.text(st.characters(exclude_categories=("Z", "C")), min_size=12).filter(lambda text: "***" not in text))
def test_no_password_survives_masking(password: str) -> None:
    assert password not in masked(f"redis://user:{password}@host:6379/0")
    assert password not in masked(f"redis://a:{password}@one/0;redis://b:{password}@two/0")


def test_a_password_among_the_options_is_masked() -> None:
    assert masked("unix:///run/s?db=0&password=abc&x=1") == "unix:///run/s?db=0&password=***&x=1"


@pytest.mark.spec("SET-2")
@pytest.mark.parametrize(
    ("setting", "broker", "ready_made", "expected"),
    [
        ("redis://state/1", "redis://broker/0", False, "redis://state/1"),
        (None, "redis://broker/0", False, "redis://broker/0"),
        (None, "rediss://broker/0?ssl_cert_reqs=CERT_NONE", False, "rediss://broker/0?ssl_cert_reqs=none"),
        (None, "redis+socket:///run/valkey.sock?virtual_host=3", False, "unix:///run/valkey.sock?db=3"),
        ("rediss://:p%40ss@state:6380/2", "amqp://rabbit", False, "rediss://:p%40ss@state:6380/2"),
        ("sentinel://one:26379;sentinel://two:26379", None, False, "sentinel://one:26379;sentinel://two:26379"),
        ("redis+cluster://one:7000/0", None, False, "redis+cluster://one:7000/0"),
        ("redis+cluster://one:7000,two:7000", "redis://broker:7000/0", False, "redis+cluster://one:7000,two:7000"),
        ("embedded", "redis://broker/0", False, EMBEDDED),
        (None, "amqp://guest@rabbit//", True, EMBEDDED),
        (None, None, True, EMBEDDED),
        (None, "redis://broker/0", True, "redis://broker/0"),
    ],
)
def test_where_the_state_is(setting: str | None, broker: str | None, ready_made: bool, expected: str) -> None:
    assert Settings.load(redis_url=setting).state_url(broker, ready_made=ready_made) == expected


@pytest.mark.spec("SET-2", "ACT-3")
@pytest.mark.parametrize(
    ("setting", "broker"),
    [
        (None, "redis+cluster://:s3cret@one:7000"),
        ("redis+cluster://one:7000", "redis+cluster://two:7001"),
        ("redis+cluster://:s3cret@one:7000,two:7001/0", "redis://:s3cret@two:7001/0"),
        ("rediss+cluster://one", "rediss://ONE:6379/0"),
    ],
)
def test_a_cluster_needs_a_broker_beside_it(setting: str | None, broker: str) -> None:
    with pytest.raises(SettingsError, match=r"set broker_url \(CELERY_BROKER_URL\) to a server of its own") as caught:
        Settings.load(redis_url=setting).state_url(broker, ready_made=False)
    assert "s3cret" not in str(caught.value)


@pytest.mark.spec("SET-2")
def test_a_cluster_has_one_database() -> None:
    assert native("rediss+cluster://one:1,two:2?ssl_cert_reqs=CERT_NONE") == "rediss+cluster://one:1,two:2?ssl_cert_reqs=none"
    for url in ("redis+cluster://:p@one:7000,two:7000/3", "redis+cluster://one:7000?db=3"):
        with pytest.raises(SettingsError, match="a cluster has no database 3"):
            Settings.load(redis_url=url).state_url("redis://broker/0", ready_made=False)


@pytest.mark.spec("SET-2")
@pytest.mark.parametrize("broker", [None, "", "amqp://guest:guest@rabbit//", "sqs://", "memory://"])
def test_without_redis_a_users_app_is_told_which_setting_to_set(broker: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", "redis://cache/0")
    monkeypatch.setenv("CELERY_RESULT_BACKEND", "redis://results/0")
    with pytest.raises(SettingsError) as caught:
        Settings.load().state_url(broker, ready_made=False)
    assert caught.value.setting == "conductor_redis_url"
    assert "CONDUCTOR_REDIS_URL" in str(caught.value)
    assert "cache" not in str(caught.value)
    assert "guest:guest" not in str(caught.value)


@pytest.mark.spec("SET-2")
def test_redis_url_is_never_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", "redis://cache/0")
    assert Settings.load().redis_url is None
    assert Settings.load().state_url(None, ready_made=True) == EMBEDDED


@pytest.mark.spec("SET-2")
@pytest.mark.parametrize("url", ["localhost:6379", "http://host", "redis://one;redis://two"])
def test_an_address_that_is_no_server_is_refused(url: str) -> None:
    with pytest.raises(SettingsError, match="conductor_redis_url"):
        Settings.load(redis_url=url).state_url(None, ready_made=True)


def test_redis_is_known_by_its_scheme() -> None:
    assert all(map(is_redis, ("REDIS://host", "rediss://host", "sentinel://host")))
    assert not any(map(is_redis, ("amqp://redis", "redis", "")))


@pytest.mark.parametrize("url", ["redis://:a%2Fb@h/0?socket_timeout=1", "unix:///s?db=1", "rediss://h"])
def test_an_address_that_needs_no_translation_is_not_touched(url: str) -> None:
    assert native(url) == url


@pytest.mark.spec("SET-3")
def test_no_durability_is_declared_unless_somebody_says_so() -> None:
    assert Settings.load().durability is None
    assert Settings.load({"conductor_durability": "replicated"}).durability == "replicated"


def test_settings_cannot_be_changed_afterwards() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Settings.load().partitions = 3  # type: ignore[misc]


def test_every_setting_is_described() -> None:
    assert [name for name, field in Settings.model_fields.items() if not field.description] == []
