"""Every kind of authentication that the spec names, as ``httpx.Auth``.

Secrets are ``pydantic.SecretStr``, whose repr shows stars, also in a traceback with local variables.
"""

from __future__ import annotations

import asyncio
import base64
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator
from urllib.parse import quote, urlencode
from weakref import WeakKeyDictionary

import httpx
from pydantic import SecretStr

from airflow_provider_lance.api.codes import ErrorCode
from airflow_provider_lance.api.errors import WireError
from airflow_provider_lance.api.http.retry import retry_after

API_KEY_HEADER = "x-api-key"
#: Set on a request whose body cannot be produced a second time, so that it is not sent again with a new token.
ONE_SHOT = "lance_one_shot_body"


class ApiKeyAuth(httpx.Auth):
    """``x-api-key``."""

    kind = "API key"

    def __init__(self, key: SecretStr) -> None:
        self.key = key

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        # A request's own identity takes precedence over the connection's.
        if API_KEY_HEADER not in request.headers and "authorization" not in request.headers:
            request.headers[API_KEY_HEADER] = self.key.get_secret_value()
        yield request


class BearerAuth(httpx.Auth):
    """``Authorization: Bearer`` with a fixed token."""

    kind = "bearer token"

    def __init__(self, token: SecretStr) -> None:
        self.token = token

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        if "authorization" not in request.headers:
            request.headers["authorization"] = f"Bearer {self.token.get_secret_value()}"
        yield request


class ClientCredentialsAuth(httpx.Auth):
    """OAuth2 client credentials: one token for all requests, renewed before it expires and once on a 401.

    Concurrent requests share one renewal, also those of several clients with the same object.
    """

    kind = "OAuth2 client credentials"
    #: Renew this many seconds early, but never before half of the token's life is over.
    margin = 60.0

    def __init__(
        self,
        token_url: str,
        client_id: str,
        client_secret: SecretStr,
        scope: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.token_url = token_url
        self.client_id = client_id
        self.client_secret = client_secret
        self.scope = scope
        self._clock = clock
        self._token: SecretStr | None = None
        self._renew_at = 0.0
        self._expires_at = 0.0
        self._thread_lock = threading.Lock()
        # A lock of asyncio belongs to the loop that first waited for it.
        self._task_locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()

    # The two flows differ in their locks and in how the body is read, which no shared generator could do.
    def sync_auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        if "authorization" in request.headers:  # the request has its own identity
            yield request
            return
        for last in (False, True):
            with self._thread_lock:
                ask = self._token_request(request)
                if ask is not None:
                    answer = yield ask
                    answer.read()
                    self._keep(answer)
            used = self._sign(request)
            response = yield request
            if last or response.status_code != 401 or request.extensions.get(ONE_SHOT):
                return
            self._reject(used)

    async def async_auth_flow(self, request: httpx.Request) -> AsyncGenerator[httpx.Request, httpx.Response]:
        if "authorization" in request.headers:
            yield request
            return
        for last in (False, True):
            async with self._task_locks.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
                ask = self._token_request(request)
                if ask is not None:
                    answer = yield ask
                    await answer.aread()
                    self._keep(answer)
            used = self._sign(request)
            response = yield request
            if last or response.status_code != 401 or request.extensions.get(ONE_SHOT):
                return
            self._reject(used)

    def _token_request(self, signed: httpx.Request) -> httpx.Request | None:
        """The request for a token, if one is needed, with the timeout of the request that is to be signed."""
        if self._token is not None and self._clock() < self._renew_at:
            return None
        form = {"grant_type": "client_credentials"}
        if self.scope:
            form["scope"] = self.scope
        # RFC 6749 2.3.1: id and secret are form-encoded before they become Basic credentials.
        return httpx.Request(
            "POST",
            self.token_url,
            content=urlencode(form),
            headers={
                "authorization": "Basic "
                + base64.b64encode(
                    f"{quote(self.client_id, safe='')}:{quote(self.client_secret.get_secret_value(), safe='')}".encode()
                ).decode(),
                "content-type": "application/x-www-form-urlencoded",
                "accept": "application/json",
            },
            extensions={"timeout": signed.extensions.get("timeout", {})},
        )

    def _keep(self, answer: httpx.Response) -> None:
        body: object = None
        try:
            body = answer.json()
        except ValueError:
            body = None
        token = body.get("access_token") if isinstance(body, dict) else None
        if answer.status_code != 200 or not isinstance(token, str) or not token:
            if answer.status_code >= 500 and self._token is not None and self._clock() < self._expires_at:
                # The old token is still valid, and a new one is asked for soon.
                self._renew_at = min(self._expires_at, self._clock() + 10)
                return
            reason = body.get("error_description") or body.get("error") if isinstance(body, dict) else None
            busy = answer.status_code >= 500 or answer.status_code == 429
            raise WireError(
                f"The token endpoint {self.token_url} answered HTTP {answer.status_code}"
                f"{f' ({reason})' if reason else ''} instead of an access token for client {self.client_id!r}. "
                + ("It may be overloaded." if busy else "Check the client id, its secret, the scope and `token_url`."),
                code=ErrorCode.SERVICE_UNAVAILABLE if busy else ErrorCode.UNAUTHENTICATED,
                status=answer.status_code,
                operation="oauth/token",
                retry_after=retry_after(answer.headers),
            )
        assert isinstance(body, dict)
        try:
            life = max(0.0, float(body.get("expires_in") or 3600))
        except (TypeError, ValueError):
            life = 3600.0
        now = self._clock()
        self._token = SecretStr(token)
        self._expires_at = now + life
        self._renew_at = now + max(life - self.margin, life / 2)

    def _sign(self, request: httpx.Request) -> SecretStr | None:
        if self._token is not None:
            request.headers["authorization"] = f"Bearer {self._token.get_secret_value()}"
        return self._token

    def _reject(self, used: SecretStr | None) -> None:
        """Drop a token that the server refused, unless another request has renewed it meanwhile."""
        if self._token is used:
            self._token = None
