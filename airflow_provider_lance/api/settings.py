"""Where a namespace server is and how to talk to it; one value for both clients.

Made from the parts of an Airflow connection, from a URL, or by hand. Its repr shows no secret.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
import ssl
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import httpx
from pydantic import SecretStr

from airflow_provider_lance import __version__
from airflow_provider_lance.api.auth import ApiKeyAuth, BearerAuth, ClientCredentialsAuth
from airflow_provider_lance.api.errors import FORBIDDEN, UNAUTHENTICATED
from airflow_provider_lance.api.ids import DEFAULT_DELIMITER
from airflow_provider_lance.api.retry import RetryPolicy

DEFAULT_PORT = 2333
AUTH_KINDS = ("none", "api_key", "bearer", "oauth2")
CONTEXT_PREFIX = "x-lance-ctx-"
_HEADER_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")


class InvalidSettingsError(ValueError):
    """A connection that cannot work; says which field and what it may hold."""


@dataclass(frozen=True)
class Settings:
    """Everything a client needs. ``base_url`` has no trailing slash and no user info."""

    base_url: str
    auth: str = "none"
    client_id: str | None = None
    secret: SecretStr | None = field(default=None)
    token_url: str | None = None
    scope: str | None = None
    delimiter: str = DEFAULT_DELIMITER
    database: str | None = None
    context: Mapping[str, str] = field(default_factory=dict, repr=False)  # headers: a tenant's key may be among them
    connect_timeout: float = 5.0
    timeout: float = 30.0
    verify: bool | str = True
    client_cert: str | None = None
    client_private_key: str | None = None
    proxy: SecretStr | None = None
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    #: Where a person sets the secret, for messages: ``the password of connection 'lance_default'``.
    credentials_place: str = "`auth` and `secret`"

    def __post_init__(self) -> None:
        parts = urlsplit(self.base_url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise InvalidSettingsError(
                f"The address {_without_userinfo(self.base_url)!r} is not an http or https URL with a host."
            )
        try:
            _ = parts.port
        except ValueError as error:
            raise InvalidSettingsError(f"The address's port cannot be used: {error}.") from None
        for what, url in (("address", self.base_url), ("token_url", self.token_url), ("proxy", self._proxy_url)):
            _check_url(what, url)
        if parts.username or parts.password:
            raise InvalidSettingsError("Put credentials into the connection's password, not into its URL.")
        object.__setattr__(self, "base_url", self.base_url.rstrip("/"))
        if self.auth not in AUTH_KINDS:
            raise InvalidSettingsError(f"`auth` is {self.auth!r}; it can be one of {', '.join(AUTH_KINDS)}.")
        if self.auth != "none" and not (self.secret and self.secret.get_secret_value()):
            raise InvalidSettingsError(f"`auth` is {self.auth}, but the connection's password is empty.")
        if self.auth == "oauth2" and not self.client_id:
            raise InvalidSettingsError("`auth` is oauth2, but the connection's login (the client id) is empty.")
        if not self.delimiter:
            raise InvalidSettingsError("`delimiter` must not be empty.")
        for name in ("connect_timeout", "timeout"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
                raise InvalidSettingsError(f"`{name}` must be a number of seconds above 0, not {value!r}.")
        context_headers(self.context)

    @classmethod
    def from_connection(
        cls,
        *,
        host: str | None,
        port: int | None = None,
        schema: str | None = None,
        login: str | None = None,
        password: str | None = None,
        extra: Mapping[str, Any] | None = None,
        retry: RetryPolicy | None = None,
        credentials_place: str = "the connection's password",
    ) -> Settings:
        """From the parts of an Airflow connection; a whole URL as ``host`` wins over port and schema."""
        extra = {key: value for key, value in (extra or {}).items() if value not in (None, "")}
        auth = str(extra.get("auth") or ("api_key" if password else "none"))
        context = extra.get("context") or {}
        if isinstance(context, str):
            context = _json_map("context", context)
        if not isinstance(context, Mapping):
            raise InvalidSettingsError("`context` must be a JSON object of strings.")
        proxy = extra.get("proxy")
        return cls(
            base_url=_base_url(host, port, schema, str(extra.get("base_path") or "")),
            auth=auth,
            client_id=login or None,
            secret=SecretStr(password) if password else None,
            token_url=extra.get("token_url"),
            scope=extra.get("scope"),
            delimiter=str(extra.get("delimiter") or DEFAULT_DELIMITER),
            database=extra.get("database"),
            context={str(key): str(value) for key, value in context.items()},
            connect_timeout=_number("connect_timeout", extra.get("connect_timeout", 5.0)),
            timeout=_number("timeout", extra.get("timeout", 30.0)),
            verify=_verify(extra.get("verify", True)),
            client_cert=extra.get("client_cert"),
            client_private_key=extra.get("client_private_key"),
            proxy=SecretStr(str(proxy)) if proxy else None,
            retry=retry or RetryPolicy(),
            credentials_place=credentials_place,
        )

    @cached_property
    def httpx_auth(self) -> httpx.Auth | None:
        """One object for all clients of these settings, so that they share an OAuth2 token."""
        if self.auth == "none" or self.secret is None:
            return None
        if self.auth == "api_key":
            return ApiKeyAuth(self.secret)
        if self.auth == "bearer":
            return BearerAuth(self.secret)
        return ClientCredentialsAuth(
            self.token_url or f"{self.base_url}/oauth/token", self.client_id or "", self.secret, self.scope
        )

    @property
    def auth_kind(self) -> str:
        """In words, for a message: ``API key``, ``bearer token``, ``OAuth2 client credentials``, ``no credentials``."""
        return getattr(self.httpx_auth, "kind", "no credentials")

    @property
    def advice(self) -> dict[int, str]:
        """What to do about refused credentials, by Lance error code."""
        if self.httpx_auth is None:
            return {
                UNAUTHENTICATED: f"No credentials were sent: set {self.credentials_place}.",
                FORBIDDEN: f"No credentials were sent: set {self.credentials_place}.",
            }
        return {
            UNAUTHENTICATED: f"The {self.auth_kind} was refused: check {self.credentials_place}.",
            FORBIDDEN: f"The {self.auth_kind} is known, but may not do this: check {self.credentials_place}.",
        }

    @cached_property
    def headers(self) -> dict[str, str]:
        """What every request carries besides credentials."""
        headers = {
            "user-agent": f"airflow-provider-lance/{__version__}",
            "accept": "*/*",
            "accept-encoding": "gzip, deflate",
        }
        if self.database:
            headers["x-lancedb-database"] = self.database
        return headers | context_headers(self.context)

    @cached_property
    def httpx_arguments(self) -> dict[str, Any]:
        """The keyword arguments of ``httpx.Client`` and ``httpx.AsyncClient``."""
        # Loading a CA store costs 20 ms or more: not where nothing is encrypted.
        encrypted = any(url.startswith("https") for url in (self.base_url, self.token_url or "", self._proxy_url))
        verify = self._ssl_context() if encrypted else False
        return {
            "auth": self.httpx_auth,
            "headers": self.headers,
            "timeout": httpx.Timeout(self.timeout, connect=self.connect_timeout),
            "verify": verify,
            "proxy": self._proxy_url or None,
            "follow_redirects": False,
            "limits": httpx.Limits(max_connections=100, max_keepalive_connections=20),
        }

    @property
    def _proxy_url(self) -> str:
        return self.proxy.get_secret_value() if self.proxy else ""

    def fingerprint(self) -> str:
        """Equal for equal connections; secrets enter only hashed. Keys a cache of clients or pollers."""
        values = [
            self.base_url,
            self.auth,
            self.client_id,
            self.secret.get_secret_value() if self.secret else None,
            self.token_url,
            self.scope,
            self.delimiter,
            self.database,
            dict(self.context),
            self.verify,
            self.client_cert,
            self.client_private_key,
            self.connect_timeout,
            self.timeout,
            self._proxy_url,
            self.credentials_place,
        ]
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()

    def redact(self, text: str) -> str:
        """Take out our own secrets, in case a server or library repeats them in a message."""
        for secret in (self.secret, self.proxy):
            value = secret.get_secret_value() if secret else ""
            if len(value) >= 4:
                text = text.replace(value, "***")
        return text

    def _ssl_context(self) -> ssl.SSLContext:
        if self.verify is False:
            warnings.warn(
                f"TLS certificates of {self.base_url} are not verified (verify=false): anybody on the way can read "
                "and change the traffic.",
                stacklevel=3,
            )
            context = ssl.create_default_context()
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        else:
            try:
                context = ssl.create_default_context(cafile=self.verify if isinstance(self.verify, str) else None)
            except (OSError, ssl.SSLError) as error:
                raise InvalidSettingsError(f"The CA bundle {self.verify!r} cannot be read: {error}.") from None
        if self.client_cert:
            try:
                context.load_cert_chain(self.client_cert, self.client_private_key)
            except (OSError, ssl.SSLError) as error:
                raise InvalidSettingsError(
                    f"The client certificate {self.client_cert!r} cannot be used: {error}."
                ) from None
        return context


def context_headers(context: Mapping[str, str]) -> dict[str, str]:
    """A request's context as headers: ``header.<name>`` literally, everything else as ``x-lance-ctx-<key>``."""
    headers: dict[str, str] = {}
    for key, value in context.items():
        name = key.removeprefix("header.") if key.startswith("header.") else CONTEXT_PREFIX + key
        if not _HEADER_NAME.fullmatch(name):
            raise InvalidSettingsError(f"The context key {key!r} cannot become an HTTP header name.")
        if not isinstance(value, str):
            raise InvalidSettingsError(f"The context value of {key!r} must be a string.")
        if any(ord(character) < 32 or ord(character) == 127 for character in value) or not _latin(value):
            raise InvalidSettingsError(f"The context value of {key!r} holds characters no HTTP header can carry.")
        headers[name.lower()] = value
    return headers


def _check_url(what: str, url: str | None) -> None:
    """Say now what httpx would say about an address in the middle of a request, without its credentials."""
    if not url:
        return
    known = ("http", "https", "socks5", "socks5h") if what == "proxy" else ("http", "https")
    try:
        parsed = httpx.URL(url)
        parsed.host.encode("idna")
    except (httpx.InvalidURL, ValueError):
        raise InvalidSettingsError(f"The {what} {_without_userinfo(url)!r} is not a valid URL.") from None
    if parsed.scheme not in known or not parsed.host:
        raise InvalidSettingsError(f"The {what} {_without_userinfo(url)!r} is not a URL of {' or '.join(known)}.")
    if parsed.scheme.startswith("socks") and importlib.util.find_spec("socksio") is None:
        raise InvalidSettingsError("A SOCKS proxy needs the package `socksio`: pip install 'httpx[socks]'.")


def _latin(text: str) -> bool:
    try:
        text.encode("ascii")
    except UnicodeEncodeError:
        return False
    return True


def _base_url(host: str | None, port: int | None, schema: str | None, base_path: str) -> str:
    if not host:
        raise InvalidSettingsError("The connection has no host: give a host name or a whole URL.")
    if "://" in host:
        url = host.rstrip("/")
    else:
        scheme = (schema or "http").lower()
        if scheme not in {"http", "https"}:
            raise InvalidSettingsError(f"The connection's schema is {schema!r}; it must be http or https.")
        name = f"[{host}]" if host.count(":") > 1 and not host.startswith("[") else host
        url = f"{scheme}://{name}:{port or DEFAULT_PORT}"
    path = base_path.strip("/")
    return f"{url}/{path}" if path else url


def _without_userinfo(url: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def _verify(value: Any) -> bool | str:
    if isinstance(value, bool):
        return value
    word = str(value).strip()
    if word.lower() in {"true", "yes", "1"}:
        return True
    if word.lower() in {"false", "no", "0"}:
        return False
    return word


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise InvalidSettingsError(f"`{name}` must be a number of seconds, not {value!r}.") from None


def _json_map(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise InvalidSettingsError(f"`{name}` is not valid JSON.") from None
