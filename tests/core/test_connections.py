"""The CLI reads Airflow's own connection variables, as a URI and as JSON, and never shows a password."""

from __future__ import annotations

import json

import pytest

from include.core.connections import Connection, from_environment
from include.core.errors import EngineError, SpecError
from include.engines.base import Endpoint


def lookup(text: str) -> Connection:
    return from_environment({"AIRFLOW_CONN_ENGINE": text})("engine")


def test_a_uri_and_json_say_the_same() -> None:
    fields = {
        "conn_type": "http",
        "host": "h",
        "port": 80,
        "login": "u",
        "password": "p@ss",
        "extra": {"a": "b"},
    }
    assert lookup(json.dumps(fields)) == lookup("http://u:p%40ss@h:80?a=b")
    assert lookup(json.dumps(fields | {"extra": '{"a": "b"}'})).extra == {"a": "b"}


@pytest.mark.parametrize("text", ["", "{", '{"port": "many"}', "http://h:port"])
def test_what_cannot_be_read_is_one_sentence(text: str) -> None:
    with pytest.raises(SpecError, match="AIRFLOW_CONN_ENGINE"):
        lookup(text)


def test_a_connection_without_a_host_is_one_sentence() -> None:
    with pytest.raises(EngineError, match="'engine' names no host"):
        Endpoint.of(lookup("just-text"))


def test_the_password_shows_nowhere() -> None:
    connection = Connection("engine", "http", "h", 80, password="s3cret", extra={"key": "s3cret"})
    endpoint = Endpoint.of(connection)
    assert "s3cret" not in f"{connection!r}{connection}{endpoint!r}{endpoint}"
    assert endpoint.headers == {"Authorization": "Bearer s3cret"}
    assert endpoint.base_url == "http://h:80"
