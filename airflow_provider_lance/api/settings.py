"""The address of a namespace server and the settings of a connection to it, as one value for both clients.

It is made from the parts of an Airflow connection or from a URL. Its repr shows no secret.
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
from typing import TypedDict
from urllib.parse import urlsplit, urlunsplit

import httpx
from pydantic import SecretStr

from airflow_provider_lance import __version__
from airflow_provider_lance.api.codes import ErrorCode
from airflow_provider_lance.api.http.auth import ApiKeyAuth, BearerAuth, ClientCredentialsAuth
from airflow_provider_lance.api.http.retry import RetryPolicy
from airflow_provider_lance.api.ids import DEFAULT_DELIMITER
from airflow_provider_lance.api.plain_data import DEFAULT_PORT

AUTH_KINDS = ("none", "api_key", "bearer", "oauth2")
#: In a connection: an API key if there is a password, else none. A form that shows a choice stores this word.
AUTO_AUTH = "auto"
CONTEXT_PREFIX = "x-lance-ctx-"
_HEADER_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")


class HttpxArguments(TypedDict):
    auth: httpx.Auth | None
    headers: dict[str, str]
    timeout: httpx.Timeout
    verify: ssl.SSLContext | bool
    proxy: str | None
    follow_redirects: bool
    limits: httpx.Limits


class InvalidSettingsError(ValueError):
    """A connection that cannot work. The message names the field and what it may hold."""


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
    context: Mapping[str, str] = field(default_factory=dict, repr=False)  # it may hold a tenant's key
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
        extra: Mapping[str, object] | None = None,
        retry: RetryPolicy | None = None,
        credentials_place: str = "the connection's password",
    ) -> Settings:
        """Read the parts of an Airflow connection. A whole URL as ``host`` takes precedence over port and schema."""
        extra = {key: value for key, value in (extra or {}).items() if value not in (None, "")}
        auth = str(extra.get("auth") or AUTO_AUTH)
        if auth == AUTO_AUTH:
            auth = "api_key" if password else "none"
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
            token_url=_text(extra, "token_url"),
            scope=_text(extra, "scope"),
            delimiter=str(extra.get("delimiter") or DEFAULT_DELIMITER),
            database=_text(extra, "database"),
            context={str(key): str(value) for key, value in context.items()},
            connect_timeout=_number("connect_timeout", extra.get("connect_timeout", 5.0)),
            timeout=_number("timeout", extra.get("timeout", 30.0)),
            verify=_verify(extra.get("verify", True)),
            client_cert=_text(extra, "client_cert"),
            client_private_key=_text(extra, "client_private_key"),
            proxy=SecretStr(str(proxy)) if proxy else None,
            retry=retry or RetryPolicy(),
            credentials_place=credentials_place,
        )

    @cached_property
    def httpx_auth(self) -> httpx.Auth | None:
        """The authentication of all clients of these settings, which share an OAuth2 token."""
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
        return str(getattr(self.httpx_auth, "kind", "no credentials"))

    @property
    def advice(self) -> dict[int, str]:
        """What to do about refused credentials, by Lance error code."""
        if self.httpx_auth is None:
            return {
                ErrorCode.UNAUTHENTICATED: f"No credentials were sent: set {self.credentials_place}.",
                ErrorCode.PERMISSION_DENIED: f"No credentials were sent: set {self.credentials_place}.",
            }
        return {
            ErrorCode.UNAUTHENTICATED: f"The {self.auth_kind} was refused: check {self.credentials_place}.",
            ErrorCode.PERMISSION_DENIED: f"The {self.auth_kind} is known, but may not do this: "
            f"check {self.credentials_place}.",
        }

    @cached_property
    def headers(self) -> dict[str, str]:
        """The headers of every request, without credentials."""
        headers = {
            "user-agent": f"airflow-provider-lance/{__version__}",
            "accept": "*/*",
            "accept-encoding": "gzip, deflate",
        }
        if self.database:
            headers["x-lancedb-database"] = self.database
        return headers | context_headers(self.context)

    @cached_property
    def httpx_arguments(self) -> HttpxArguments:
        """The keyword arguments of ``httpx.Client`` and ``httpx.AsyncClient``."""
        # Loading a CA store takes 20 ms or more, so it is not loaded where nothing is encrypted.
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
        """A hash that is equal for equal connections, as the key of a cache of clients."""
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
        """Replace our own secrets in a text, in case a server or a library repeats them in a message."""
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
    """A request's context as headers: ``header.<name>`` as ``<name>``, any other key as ``x-lance-ctx-<key>``."""
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
    """Refuse an address that httpx would refuse during a request, in a message without its credentials."""
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


def _text(extra: Mapping[str, object], name: str) -> str | None:
    value = extra.get(name)
    return None if value is None else str(value)


def _verify(value: object) -> bool | str:
    if isinstance(value, bool):
        return value
    word = str(value).strip()
    if word.lower() in {"true", "yes", "1"}:
        return True
    if word.lower() in {"false", "no", "0"}:
        return False
    return word


def _number(name: str, value: object) -> float:
    try:
        return float(str(value))
    except (TypeError, ValueError):
        raise InvalidSettingsError(f"`{name}` must be a number of seconds, not {value!r}.") from None


def _json_map(name: str, text: str) -> object:
    try:
        value: object = json.loads(text)
        return value
    except ValueError:
        raise InvalidSettingsError(f"`{name}` is not valid JSON.") from None
