"""Credentials, TLS and proxies against real servers, and secrets that appear nowhere."""

from __future__ import annotations

import asyncio
import ssl
import threading
import traceback
from base64 import b64encode
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme
from lance_namespace import errors as lance
from pydantic import SecretStr

from airflow_provider_lance.api.client import AsyncLanceClient, LanceClient
from airflow_provider_lance.api.http.auth import ClientCredentialsAuth
from airflow_provider_lance.api.http.retry import NO_RETRY
from airflow_provider_lance.api.settings import Settings
from tests.api.conftest import Both, Connect
from tests.api.fault_server import Answer, Fault, FaultHandler, FaultServer, Reset, Seen

TABLE = {"version": 3}
SECRET = "hunter2-very-secret"


def guarded(header: str, value: str) -> Callable[[Seen], Answer]:
    return lambda seen: Answer(200, TABLE) if seen.headers.get(header) == value else Answer(401, {"code": 16})


def test_api_key(server: FaultServer, connect: Connect) -> None:
    server.play([guarded("x-api-key", SECRET)])
    assert connect(auth="api_key", secret=SecretStr(SECRET)).describe_table({"id": "t"}).version == 3
    with pytest.raises(lance.UnauthenticatedError, match="The API key was refused: check `auth` and `secret`"):
        connect(auth="api_key", secret=SecretStr("wrong")).describe_table({"id": "t"})
    assert len(server.seen) == 2
    with pytest.raises(lance.UnauthenticatedError, match="No credentials were sent: set `auth` and `secret`"):
        connect().describe_table({"id": "t"})


def test_bearer(server: FaultServer, connect: Connect) -> None:
    server.play([guarded("authorization", f"Bearer {SECRET}")])
    assert connect(auth="bearer", secret=SecretStr(SECRET)).describe_table({"id": "t"}).version == 3


class TokenIssuer:
    """Answers ``/oauth/token`` and accepts only the newest token."""

    def __init__(self, server: FaultServer, life: float = 3600) -> None:
        self.issued = 0
        self.life = life
        server.play([self.issue], "oauth/token")
        server.play([self.guard])

    def issue(self, seen: Seen) -> Answer:
        expected = b64encode(b"my%20id:" + b"s%2Fcret%20").decode()
        if seen.headers["authorization"] != f"Basic {expected}" or b"grant_type=client_credentials" not in seen.body:
            return Answer(401, {"error": "invalid_client", "error_description": "unknown client"})
        self.issued += 1
        return Answer(200, {"access_token": f"token-{self.issued}", "expires_in": self.life, "token_type": "bearer"})

    def guard(self, seen: Seen) -> Answer:
        good = seen.headers.get("authorization") == f"Bearer token-{self.issued}"
        return Answer(200, TABLE) if good else Answer(401, {"error": "expired", "code": 16})


OAUTH: dict[str, Any] = {"auth": "oauth2", "client_id": "my id", "secret": SecretStr("s/cret "), "scope": "read write"}


def test_oauth2_token_is_cached_and_renewed_once_on_401(server: FaultServer, connect: Connect) -> None:
    issuer = TokenIssuer(server)
    client = connect(**OAUTH)
    for _ in range(3):
        client.describe_table({"id": "t"})
    assert issuer.issued == 1
    assert b"scope=read+write" in server.requests("oauth/token")[0].body
    issuer.issued += 1  # the server forgets the old token
    server.play([Answer(401, {"error": "no", "code": 16})])
    with pytest.raises(lance.UnauthenticatedError):
        client.describe_table({"id": "t"})
    assert len(server.requests("oauth/token")) == 2  # asked once more, not for ever
    server.play([issuer.guard])
    assert client.describe_table({"id": "t"}).version == 3


def test_oauth2_expired_token_is_replaced_within_the_same_call(server: FaultServer, connect: Connect) -> None:
    issuer = TokenIssuer(server)
    client = connect(**OAUTH)
    client.describe_table({"id": "t"})
    server.play([Answer(401, {"error": "expired", "code": 16}), issuer.guard])
    assert client.describe_table({"id": "t"}).version == 3
    assert issuer.issued == 2


def test_oauth2_token_is_renewed_before_it_expires() -> None:
    now = [0.0]
    auth = ClientCredentialsAuth("http://t", "i", SecretStr("s"), clock=lambda: now[0])

    def asks_for_a_token() -> bool:
        request = httpx.Request("GET", "http://t")
        flow = auth.sync_auth_flow(request)
        first = next(flow)
        if first is not request:
            assert flow.send(httpx.Response(200, json={"access_token": "a", "expires_in": 600})) is request
        flow.close()
        return first is not request

    assert asks_for_a_token()
    now[0] = 539
    assert not asks_for_a_token()
    now[0] = 541
    assert asks_for_a_token()


def test_oauth2_wrong_secret_says_what_to_check(server: FaultServer, connect: Connect) -> None:
    TokenIssuer(server)
    with pytest.raises(lance.UnauthenticatedError, match=r"unknown client.*Check the client id") as caught:
        connect(**{**OAUTH, "secret": SecretStr(SECRET)}).describe_table({"id": "t"})
    assert SECRET not in str(caught.value)


def test_oauth2_waits_for_a_busy_token_endpoint(server: FaultServer, connect: Connect) -> None:
    issuer = TokenIssuer(server)
    server.play([Answer(503, {}, {"retry-after": "0"}), Answer(429), issuer.issue], "oauth/token")
    assert connect(**OAUTH).describe_table({"id": "t"}).version == 3
    server.play([Answer(503)], "oauth/token")
    with pytest.raises(lance.ServiceUnavailableError, match=r"may be overloaded.*Gave up after 4 tries") as caught:
        connect(**OAUTH).describe_table({"id": "t"})
    assert "its secret" not in str(caught.value)


def test_oauth2_does_not_wait_for_ever_for_a_silent_token_endpoint(server: FaultServer, connect: Connect) -> None:
    TokenIssuer(server)
    server.play([Answer(200, {}, delay=5)], "oauth/token")
    client = connect(**OAUTH, timeout=0.3, retry=NO_RETRY)
    with pytest.raises(lance.LanceNamespaceError, match="did not answer in time"):
        client.describe_table({"id": "t"})


def test_oauth2_serves_one_event_loop_after_the_other(server: FaultServer) -> None:
    issuer = TokenIssuer(server)
    settings = Settings(server.url, **OAUTH)

    async def crowd() -> set[int | None]:
        async with AsyncLanceClient(settings) as client:
            answers = await asyncio.gather(*(client.describe_table({"id": "t"}) for _ in range(3)))
            return {answer.version for answer in answers}

    assert asyncio.run(crowd()) == {3}
    issuer.issued += 1  # the server no longer accepts the token, so the second crowd waits for another one
    assert asyncio.run(crowd()) == {3}
    assert len(server.requests("oauth/token")) == 2


def test_a_crowd_asks_for_one_token(server: FaultServer) -> None:
    issuer = TokenIssuer(server)
    with LanceClient(Settings(server.url, **OAUTH)) as client, ThreadPoolExecutor(16) as pool:
        assert {r.version for r in pool.map(lambda _: client.describe_table({"id": "t"}), range(50))} == {3}
    assert issuer.issued == 1

    async def crowd() -> None:
        async with AsyncLanceClient(Settings(server.url, **OAUTH)) as client:
            await asyncio.gather(*(client.describe_table({"id": "t"}) for _ in range(50)))

    asyncio.run(crowd())
    assert issuer.issued == 2


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> tuple[trustme.CA, Path]:
    ca = trustme.CA()
    folder = tmp_path_factory.mktemp("tls")
    ca.cert_pem.write_to_path(str(folder / "ca.pem"))
    client = ca.issue_cert("client@example.org")
    client.private_key_and_cert_chain_pem.write_to_path(str(folder / "client.pem"))
    return ca, folder


@pytest.fixture
def tls_url(authority: tuple[trustme.CA, Path], server: FaultServer) -> Iterator[str]:
    """The fault server behind TLS, asking for a client certificate of the same authority."""
    ca, _ = authority
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert("localhost").configure_cert(context)
    ca.configure_trust(context)
    context.verify_mode = ssl.CERT_OPTIONAL
    server.play([Answer(200, TABLE)])
    listener = ThreadingHTTPServer(("127.0.0.1", 0), type("Tls", (FaultHandler,), {"owner": server}))
    listener.daemon_threads = True
    listener.socket = context.wrap_socket(listener.socket, server_side=True)
    threading.Thread(target=listener.serve_forever, args=(0.02,), daemon=True).start()
    yield f"https://localhost:{listener.server_port}"
    listener.shutdown()
    listener.server_close()


def test_tls_with_a_ca_bundle_and_a_client_certificate(
    tls_url: str, authority: tuple[trustme.CA, Path], both: Both
) -> None:
    _, folder = authority
    client = both(tls_url, verify=str(folder / "ca.pem"), client_cert=str(folder / "client.pem"))
    assert client.describe_table({"id": "t"}).version == 3


def test_an_untrusted_certificate_fails_at_once_with_a_way_out(tls_url: str, both: Both, server: FaultServer) -> None:
    with pytest.raises(lance.ServiceUnavailableError, match=r"TLS failed: check the CA bundle") as caught:
        both(tls_url).describe_table({"id": "t"})
    assert "Gave up" not in str(caught.value)
    assert not server.seen


def test_verify_off_works_and_warns(tls_url: str, both: Both) -> None:
    with pytest.warns(UserWarning, match="not verified"):
        client = both(tls_url, verify=False)
    assert client.describe_table({"id": "t"}).version == 3


def test_a_proxy_is_used(server: FaultServer, both: Both) -> None:
    server.play([Answer(200, TABLE)])
    client = both("http://namespace.invalid:2333/base", proxy=SecretStr(server.url))
    assert client.describe_table({"id": "t"}).version == 3
    assert server.seen[0].path == "http://namespace.invalid:2333/base/v1/table/t/describe"


@pytest.mark.parametrize(
    "credentials",
    [
        {"auth": "api_key", "secret": SecretStr(SECRET)},
        {"auth": "bearer", "secret": SecretStr(SECRET)},
        {"auth": "oauth2", "client_id": "i", "secret": SecretStr(SECRET)},
    ],
    ids=["api_key", "bearer", "oauth2"],
)
@pytest.mark.parametrize(
    "fault", [Answer(401, {"error": f"bad key {SECRET}", "code": 16}), Reset, Answer(200, "junk")], ids=str
)
def test_secrets_appear_in_no_message_repr_or_traceback(
    server: FaultServer, connect: Connect, credentials: dict[str, Any], fault: Fault, caplog: pytest.LogCaptureFixture
) -> None:
    server.play([fault])
    server.play([Answer(200, {"access_token": f"{SECRET}-token", "expires_in": 60})], "oauth/token")
    caplog.set_level("DEBUG")
    client = connect(**credentials, retry=NO_RETRY)
    with pytest.raises(lance.LanceNamespaceError) as caught:
        client.delete_from_table({"id": "t", "predicate": "true"})
    below = caught.tb.tb_next  # this test's own frame has the secret
    frames = traceback.TracebackException(type(caught.value), caught.value, below, capture_locals=True)
    shown = "".join(frames.format())
    assert "fields = " in shown
    assert SECRET not in shown
    assert SECRET not in str(caught.value) + repr(caught.value) + repr(client) + caplog.text
