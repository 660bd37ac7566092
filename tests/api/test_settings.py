"""Connections: every field of the connection has its effect, and a wrong one is refused with a sentence."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_lance.api.http.auth import ClientCredentialsAuth
from airflow_provider_lance.api.settings import InvalidSettingsError, Settings, context_headers


@pytest.mark.parametrize(
    ("parts", "url"),
    [
        ({"host": "h"}, "http://h:2333"),
        ({"host": "h", "port": 1, "schema": "https"}, "https://h:1"),
        ({"host": "https://h:9/base/", "port": 1, "schema": "http"}, "https://h:9/base"),
        ({"host": "h", "extra": {"base_path": "/v9/"}}, "http://h:2333/v9"),
        ({"host": "::1"}, "http://[::1]:2333"),
    ],
)
def test_addresses(parts: dict[str, Any], url: str) -> None:
    assert Settings.from_connection(**parts).base_url == url


def test_auth_defaults() -> None:
    assert Settings.from_connection(host="h").auth_kind == "no credentials"
    assert Settings.from_connection(host="h", password="k").auth_kind == "API key"
    assert Settings.from_connection(host="h", password="k", extra={"auth": "bearer"}).auth_kind == "bearer token"
    assert Settings.from_connection(host="h", password="k", extra={"auth": "auto"}).auth_kind == "API key"
    assert Settings.from_connection(host="h", extra={"auth": "auto"}).auth_kind == "no credentials"
    oauth = Settings.from_connection(host="h", login="id", password="s", extra={"auth": "oauth2"})
    assert isinstance(oauth.httpx_auth, ClientCredentialsAuth)
    assert oauth.httpx_auth.token_url == "http://h:2333/oauth/token"


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({"host": None}, "no host"),
        ({"host": "ftp://h"}, "http or https"),
        ({"host": "h", "schema": "ftp"}, "schema"),
        ({"host": "http://h:99999"}, "port"),
        ({"host": "http://u:pw@h"}, "not into its URL"),
        ({"host": "h", "extra": {"auth": "magic"}}, "none, api_key, bearer, oauth2"),
        ({"host": "h", "extra": {"auth": "bearer"}}, "password is empty"),
        ({"host": "h", "password": "s", "extra": {"auth": "oauth2"}}, "client id"),
        ({"host": "h", "extra": {"timeout": "fast"}}, "timeout"),
        ({"host": "h", "extra": {"timeout": -1}}, "timeout"),
        ({"host": "h", "extra": {"proxy": "localhost:3128"}}, "proxy"),
        ({"host": "h", "extra": {"proxy": "gopher://u:pw@p"}}, "proxy"),
        ({"host": "h", "extra": {"proxy": "socks5://u:pw@p:1"}}, "socksio"),
        ({"host": "http://h\x00x"}, "not a valid URL"),
        ({"host": f"http://{'x' * 64}.example"}, "not a valid URL"),
        ({"host": "h", "extra": {"context": "{"}}, "JSON"),
        ({"host": "h", "extra": {"context": {"a b": "c"}}}, "header name"),
        ({"host": "h", "extra": {"context": {"a": "c\r\nx: y"}}}, "no HTTP header can carry"),
    ],
)
def test_a_connection_that_cannot_work_says_why(parts: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidSettingsError, match=says) as caught:
        Settings.from_connection(**parts)
    assert "pw" not in str(caught.value)


def test_context_becomes_headers() -> None:
    assert context_headers({"trace": "1", "header.X-Own": "2"}) == {"x-lance-ctx-trace": "1", "x-own": "2"}


def test_no_secret_in_any_repr() -> None:
    settings = Settings.from_connection(
        host="h",
        login="id",
        password="hunter22",
        extra={"auth": "oauth2", "proxy": "http://u:hunter22@p:1", "context": {"header.x-tenant": "hunter33"}},
    )
    assert "hunter22" not in repr(settings) + str(settings) + repr(vars(settings)) + repr(settings.httpx_auth)
    assert "hunter33" not in repr(settings) + str(settings)
    assert settings.redact("token hunter22 refused") == "token *** refused"


def test_equal_connections_have_equal_fingerprints() -> None:
    one = Settings.from_connection(host="h", password="a")
    assert one.fingerprint() == Settings.from_connection(host="http://h:2333", password="a").fingerprint()
    assert one.fingerprint() != Settings.from_connection(host="h", password="b").fingerprint()


def test_a_missing_ca_bundle_is_named() -> None:
    settings = Settings("https://h", verify="/no/such/bundle.pem")
    with pytest.raises(InvalidSettingsError, match=r"CA bundle '/no/such/bundle.pem'"):
        _ = settings.httpx_arguments
