"""The client against a server that plays an API server's good and bad days."""

import asyncio
import gc
import json
import logging
import pickle
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest
import uvloop
from aiohttp import web
from sandbox_api.kube import (
    CONFIG_MAPS,
    NAMESPACES,
    PODS,
    SANDBOXES,
    AlreadyExists,
    ApiError,
    Conflict,
    Endpoint,
    Forbidden,
    Gone,
    Invalid,
    KubeClient,
    NotFound,
    ServerError,
    ServerTimeout,
    StaticCredentials,
    TooManyRequests,
    Unauthorized,
    Unreachable,
)
from sandbox_api.kube.client import _Connector
from sandbox_api.kube.errors import from_status

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(handler: Handler, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """A server on a loopback port; yields its base URL."""

    async def answer(request: web.Request) -> web.StreamResponse:
        return await handler(request)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    try:
        yield f"http{'s' if tls else ''}://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def client_of(handler: Handler, **settings: Any) -> AsyncIterator[KubeClient]:
    async with (
        serving(handler) as url,
        KubeClient(StaticCredentials(Endpoint(url)), **settings) as client,
    ):
        yield client


def status(code: int, reason: str, message: str = "no", **more: Any) -> web.Response:
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason}
    return web.json_response({**body, "message": message, **more}, status=code)


class Script:
    """Answers requests one after the other, and remembers them."""

    def __init__(self, *answers: Callable[[web.Request], Any]) -> None:
        self.answers = list(answers)
        self.requests: list[tuple[str, str, dict[str, str], Any]] = []
        self.headers: list[dict[str, str]] = []

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        text = await request.text()
        self.requests.append(
            (request.method, request.path, dict(request.query), json.loads(text) if text else None)
        )
        self.headers.append(dict(request.headers))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        result = answer(request)
        response: web.StreamResponse = await result if asyncio.iscoroutine(result) else result
        return response


def ok(body: Any) -> Callable[[web.Request], web.Response]:
    return lambda _: web.json_response(body)


async def stream(
    request: web.Request, *parts: bytes, pause: float = 0.0, cut: bool = False
) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    for part in parts:
        await response.write(part)
        await asyncio.sleep(pause)
    if cut:
        assert request.transport is not None
        request.transport.abort()
    return response


def event(kind: str, name: str, version: int) -> bytes:
    item = {"metadata": {"name": name, "namespace": "x", "resourceVersion": str(version)}}
    return json.dumps({"type": kind, "object": item}).encode() + b"\n"


# -- what is sent


async def test_each_verb_sends_what_the_api_server_expects() -> None:
    script = Script(ok({"kind": "Pod"}))
    async with client_of(script) as api:
        await api.get(PODS, "a", "x")
        await api.get(NAMESPACES, "a")
        await api.create(
            PODS, {"metadata": {"name": "a", "namespace": "x"}}, field_manager="me", dry_run=True
        )
        await api.create(
            PODS, {"metadata": {"generateName": "a-"}}, "y", field_manager="me", validation="Strict"
        )
        await api.apply(SANDBOXES, {"metadata": {"name": "a"}}, "x", field_manager="me", subresource="status")
        await api.patch(PODS, "a", "x", {"metadata": {"labels": None}}, field_manager="me")
        await api.patch(PODS, "a", "x", [{"op": "remove", "path": "/spec"}], kind="json", field_manager="me")
        await api.replace(PODS, {"metadata": {"name": "a", "namespace": "x"}}, field_manager="me")
        await api.delete(
            PODS, "a", "x", uid="u", resource_version="7", grace_period_seconds=0, propagation="Background"
        )
    sandbox = {"apiVersion": "sandbox-operator.dev/v1alpha1", "kind": "Sandbox", "metadata": {"name": "a"}}
    assert script.requests == [
        ("GET", "/api/v1/namespaces/x/pods/a", {}, None),
        ("GET", "/api/v1/namespaces/a", {}, None),
        (
            "POST",
            "/api/v1/namespaces/x/pods",
            {"fieldManager": "me", "dryRun": "All"},
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "namespace": "x"}},
        ),
        (
            "POST",
            "/api/v1/namespaces/y/pods",
            {"fieldManager": "me", "fieldValidation": "Strict"},
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "a-"}},
        ),
        (
            "PATCH",
            "/apis/sandbox-operator.dev/v1alpha1/namespaces/x/sandboxes/a/status",
            {"fieldManager": "me", "force": "true"},
            sandbox,
        ),
        ("PATCH", "/api/v1/namespaces/x/pods/a", {"fieldManager": "me"}, {"metadata": {"labels": None}}),
        ("PATCH", "/api/v1/namespaces/x/pods/a", {"fieldManager": "me"}, [{"op": "remove", "path": "/spec"}]),
        (
            "PUT",
            "/api/v1/namespaces/x/pods/a",
            {"fieldManager": "me"},
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "namespace": "x"}},
        ),
        (
            "DELETE",
            "/api/v1/namespaces/x/pods/a",
            {},
            {
                "apiVersion": "v1",
                "kind": "DeleteOptions",
                "preconditions": {"uid": "u", "resourceVersion": "7"},
                "gracePeriodSeconds": 0,
                "propagationPolicy": "Background",
            },
        ),
    ]
    types = [headers.get("Content-Type") for headers in script.headers]
    assert types[4:7] == [
        "application/apply-patch+yaml",
        "application/merge-patch+json",
        "application/json-patch+json",
    ]


async def test_a_list_is_read_in_pages_and_its_items_are_typed() -> None:
    script = Script(
        ok(
            {
                "metadata": {"continue": "more+/=", "resourceVersion": "5"},
                "items": [{"metadata": {"name": "a"}}],
            }
        ),
        ok({"metadata": {"resourceVersion": "5"}, "items": [{"metadata": {"name": "b"}}]}),
    )
    async with client_of(script) as api:
        result = await api.list(PODS, "x", label_selector="a in (b, c),d!=e", field_selector="f=g", limit=1)
    assert [item["metadata"]["name"] for item in result.items] == ["a", "b"]
    assert {(item["apiVersion"], item["kind"]) for item in result.items} == {("v1", "Pod")}
    assert result.resource_version == "5"
    first, second = (request[2] for request in script.requests)
    assert first == {"labelSelector": "a in (b, c),d!=e", "fieldSelector": "f=g", "limit": "1"}
    assert second == {**first, "continue": "more+/="}


async def test_a_list_whose_token_expires_is_read_again_whole() -> None:
    script = Script(
        ok({"metadata": {"continue": "t"}, "items": [{"metadata": {"name": "old"}}]}),
        lambda _: status(410, "Expired"),
        ok({"metadata": {"resourceVersion": "9"}, "items": [{"metadata": {"name": "new"}}]}),
    )
    async with client_of(script) as api:
        result = await api.list(PODS)
    assert [item["metadata"]["name"] for item in result.items] == ["new"]
    assert script.requests[-1][2] == {}


async def test_a_list_is_trimmed_page_by_page() -> None:
    """Of large objects no more than a page may ever stand in memory whole, also where the token expires."""
    whole: list[tuple[str, int]] = []

    def page(name: str, token: str = "") -> Any:
        return ok({"metadata": {"continue": token}, "items": [{"metadata": {"name": name}, "large": name}]})

    def trim(item: dict[str, Any]) -> dict[str, Any]:
        whole.append((item["large"], len(script.requests)))
        return {"metadata": item["metadata"]}

    script = Script(page("a", "t"), lambda _: status(410, "Expired"), page("a", "t"), page("b"))
    async with client_of(script) as api:
        result = await api.list(PODS, trim=trim, limit=1)
    assert result.items == [{"metadata": {"name": "a"}}, {"metadata": {"name": "b"}}]
    assert whole == [("a", 1), ("a", 3), ("b", 4)]  # each before the next page is asked for
    assert [request[2].get("limit") for request in script.requests] == ["1"] * 4


@pytest.mark.parametrize("name", ["", ".", ".."])
async def test_a_name_cannot_climb_in_the_path(name: str) -> None:
    async with client_of(Script(ok({}))) as api:
        with pytest.raises(ValueError, match="is not a name"):
            await api.get(PODS, name, "x")


async def test_a_name_stays_one_segment() -> None:
    assert PODS.path("a/b?c#d", "x") == "/api/v1/namespaces/x/pods/a%2Fb%3Fc%23d"
    seen: list[str] = []

    async def handler(request: web.Request) -> web.Response:
        seen.append(request.raw_path)
        return web.json_response({})

    async with client_of(handler) as api:
        await api.get(PODS, "a/b?c#d", "x")
    assert seen == ["/api/v1/namespaces/x/pods/a%2Fb%3Fc%23d"]


def test_namespaces_are_asked_for_where_they_belong() -> None:
    with pytest.raises(ValueError, match="needs a namespace"):
        PODS.path("a")
    with pytest.raises(ValueError, match="cluster-wide"):
        NAMESPACES.path("a", "b")


async def test_raw_returns_bytes_and_takes_bytes() -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(body=await request.read())

    async with client_of(handler) as api:
        assert (
            await api.raw("POST", "/x", body=b"\x00\xff", content_type="application/octet-stream")
            == b"\x00\xff"
        )


# -- errors


@pytest.mark.parametrize(
    ("code", "reason", "kind", "retryable"),
    [
        (401, "Unauthorized", Unauthorized, False),
        (403, "Forbidden", Forbidden, False),
        (404, "NotFound", NotFound, False),
        (409, "AlreadyExists", AlreadyExists, False),
        (409, "Conflict", Conflict, False),
        (410, "Gone", Gone, False),
        (422, "Invalid", Invalid, False),
        (429, "TooManyRequests", TooManyRequests, True),
        (500, "InternalError", ServerError, True),
        (500, "ServerTimeout", ServerTimeout, True),
        (504, "Timeout", ServerTimeout, True),
        (418, "Teapot", ApiError, False),
    ],
)
async def test_refusals_are_typed(code: int, reason: str, kind: type[ApiError], retryable: bool) -> None:
    async with client_of(lambda _: _done(status(code, reason, 'pods "a" is not to be'))) as api:
        with pytest.raises(ApiError) as caught:
            await api.create(PODS, {"metadata": {"name": "a"}}, "x", field_manager="me")
    assert type(caught.value) is kind
    assert caught.value.retryable is retryable
    assert (caught.value.status, caught.value.reason) == (code, reason)
    assert str(caught.value) == f'pods "a" is not to be ({code} {reason})'


async def _done(response: web.Response) -> web.Response:
    return response


async def test_causes_and_a_terminating_namespace_are_told() -> None:
    causes = [{"reason": "NamespaceTerminating", "field": "metadata.namespace"}]
    async with client_of(lambda _: _done(status(403, "Forbidden", details={"causes": causes}))) as api:
        with pytest.raises(Forbidden) as caught:
            await api.get(PODS, "a", "x")
    assert caught.value.causes == causes
    assert caught.value.namespace_terminating


@pytest.mark.parametrize("body", ["<html>sorry</html>", '["a"]', "{", '{"kind": "Status", "code": "x"}'])
async def test_an_answer_that_is_no_status_is_survived(body: str) -> None:
    async with client_of(lambda _: _done(web.Response(status=502, text=body))) as api:
        with pytest.raises(ServerError) as caught:
            await api.create(PODS, {"metadata": {"name": "a"}}, "x", field_manager="me")
    assert caught.value.status == 502


@pytest.mark.parametrize("body", ["<html>please log in</html>", "[]", ""])
async def test_a_good_answer_that_is_no_object_is_an_error(body: str) -> None:
    async with client_of(lambda _: _done(web.Response(text=body))) as api:
        with pytest.raises(ServerError, match="not a JSON object"):
            await api.get(PODS, "a", "x")


async def test_redirects_are_not_followed() -> None:
    async with client_of(lambda _: _done(web.Response(status=302, headers={"Location": "/"}))) as api:
        with pytest.raises(ApiError) as caught:
            await api.get(PODS, "a", "x")
    assert caught.value.status == 302


def test_errors_are_bounded_and_can_be_pickled() -> None:
    error = from_status({"code": 422, "reason": "Invalid", "message": "x" * 100_000})
    assert len(error.message) == 2048
    for copied in (pickle.loads(pickle.dumps(error)), pickle.loads(pickle.dumps(Unreachable()))):
        assert isinstance(copied, ApiError)


async def test_errors_hold_neither_bodies_nor_credentials(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    endpoint = Endpoint("http://127.0.0.1:1", headers={"Authorization": "Bearer s3cret"})
    proxied = Endpoint("http://127.0.0.1:1", proxy="http://user:s3cret@127.0.0.1:1")
    for one in (endpoint, proxied):
        async with KubeClient(StaticCredentials(one)) as api:
            with pytest.raises(Unreachable) as caught:
                await api.create(
                    CONFIG_MAPS,
                    {"metadata": {"name": "s3cret"}, "data": {"k": "s3cret"}},
                    "x",
                    field_manager="me",
                )
        assert "s3cret" not in f"{caught.value!r} {caught.value} {caught.value.__cause__!r} {one!r}"
        assert "127.0.0.1:1: no connection: Connect call failed" in str(caught.value)
    assert "s3cret" not in caplog.text


async def test_a_proxy_that_refuses_is_named_without_its_password() -> None:
    async with serving(lambda _: _done(web.Response())) as proxy:
        proxy = proxy.replace("//", "//user:s3cret@")
        async with KubeClient(StaticCredentials(Endpoint("https://api.invalid", proxy=proxy))) as api:
            with pytest.raises(Unreachable, match="the proxy refused with status 404") as caught:
                await api.get(PODS, "a", "x")
    assert "s3cret" not in repr(caught.value)


# -- repetition


async def test_a_read_is_repeated_when_the_connection_breaks() -> None:
    script = Script(lambda r: stream(r, b"{", cut=True), lambda r: stream(r, cut=True), ok({"a": 1}))
    async with client_of(script) as api:
        assert await api.get(PODS, "a", "x") == {"a": 1}
    assert len(script.requests) == 3


async def test_a_read_is_not_repeated_for_ever() -> None:
    script = Script(lambda r: stream(r, b"{", cut=True))
    async with client_of(script) as api:
        with pytest.raises(Unreachable, match="the connection was lost"):
            await api.get(PODS, "a", "x")
    assert len(script.requests) == 3


async def test_a_write_that_may_have_happened_is_not_repeated() -> None:
    script = Script(lambda r: stream(r, b"{", cut=True))
    async with client_of(script) as api:
        with pytest.raises(Unreachable):
            await api.create(PODS, {"metadata": {"name": "a"}}, "x", field_manager="me")
    assert len(script.requests) == 1


async def test_throttled_requests_wait_as_they_were_told() -> None:
    def busy(_: web.Request) -> web.Response:
        response = status(429, "TooManyRequests")
        response.headers["Retry-After"] = "0.05"
        return response

    script = Script(busy, busy, ok({"a": 1}))
    async with client_of(script) as api:
        started = asyncio.get_running_loop().time()
        assert await api.create(PODS, {"metadata": {"name": "a"}}, "x", field_manager="me") == {"a": 1}
        assert asyncio.get_running_loop().time() - started >= 0.1
    forever = Script(busy)
    async with client_of(forever) as api:
        with pytest.raises(TooManyRequests) as caught:
            await api.get(PODS, "a", "x")
    assert caught.value.retry_after == 0.05
    assert len(forever.requests) == 5


class Renewed:
    """Credentials whose first token has expired."""

    def __init__(self, url: str) -> None:
        self.url, self.token, self.asked = url, "old", []  # type: ignore[var-annotated]

    async def endpoint(self, *, refresh: bool = False) -> Endpoint:
        self.asked.append(refresh)
        if refresh:
            self.token = "new"
        return Endpoint(self.url, headers={"Authorization": f"Bearer {self.token}"})


async def test_expired_credentials_are_renewed_once() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        if request.headers["Authorization"] != "Bearer new":
            return status(401, "Unauthorized")
        if "watch" in request.query:
            return await stream(request, event("ADDED", "a", 1))
        return web.json_response({"a": 1})

    async with serving(handler) as url:
        credentials = Renewed(url)
        async with KubeClient(credentials) as api:
            assert await api.create(PODS, {"metadata": {"name": "a"}}, "x", field_manager="me") == {"a": 1}
        assert credentials.asked == [False, True]
        credentials = Renewed(url)
        async with KubeClient(credentials) as api:
            assert [kind async for kind, _ in api.watch(PODS, resource_version="1")] == ["ADDED"]
        assert credentials.asked == [False, True]


async def test_credentials_that_stay_refused_are_an_error() -> None:
    async with serving(lambda _: _done(status(401, "Unauthorized"))) as url:
        credentials = Renewed(url)
        async with KubeClient(credentials) as api:
            with pytest.raises(Unauthorized):
                await api.get(PODS, "a", "x")
            with pytest.raises(Unauthorized):
                await anext(api.watch(PODS, resource_version="1"))
        assert credentials.asked == [False, True, False, True]


async def test_a_slow_answer_is_given_up() -> None:
    async def handler(_: web.Request) -> web.Response:
        await asyncio.sleep(30)
        return web.json_response({})

    async with client_of(handler, timeout=0.2) as api:
        started = asyncio.get_running_loop().time()
        with pytest.raises(Unreachable, match="no answer in time"):
            await api.get(PODS, "a", "x")
        with pytest.raises(Unreachable, match="no answer in time"):
            await anext(api.watch(PODS, resource_version="1"))
        assert asyncio.get_running_loop().time() - started < 2


async def test_requests_are_bounded_and_watches_do_not_count() -> None:
    now = most = 0

    async def handler(request: web.Request) -> web.StreamResponse:
        nonlocal now, most
        if "watch" in request.query:
            return await stream(request, event("ADDED", "a", 1), pause=5)
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.02)
        now -= 1
        return web.json_response({})

    async with client_of(handler, connections=2) as api:
        watches = [api.watch(PODS, resource_version="1") for _ in range(4)]
        for watch in watches:
            await anext(watch)
        await asyncio.gather(*(api.get(PODS, "a", "x") for _ in range(12)))
        for watch in watches:
            await watch.aclose()
    assert most == 2


async def test_warnings_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    headers = {"Warning": '299 - "unknown field"'}
    async with client_of(lambda _: _done(web.json_response({}, headers=headers))) as api:
        await api.get(PODS, "a", "x")
        await api.get(PODS, "a", "x")
    assert caplog.text.count("unknown field") == 1


async def test_a_closed_client_says_so() -> None:
    api = KubeClient(StaticCredentials(Endpoint("http://127.0.0.1:1")))
    await api.close()
    await api.close()
    with pytest.raises(RuntimeError, match="closed"):
        await api.get(PODS, "a", "x")


# -- watching


async def watched(handler: Handler, **settings: Any) -> list[tuple[str, str]]:
    seen = []
    async with (
        client_of(handler) as api,
        aclosing(api.watch(PODS, "x", **{"resource_version": "1", **settings})) as events,
    ):
        async for kind, item in events:
            seen.append((kind, item["metadata"]["resourceVersion"]))
    return seen


async def test_a_watch_asks_for_bookmarks_and_an_end() -> None:
    script = Script(lambda r: stream(r, event("ADDED", "a", 2), event("BOOKMARK", "", 3)))
    assert await watched(script, label_selector="a=b", timeout_seconds=60) == [
        ("ADDED", "2"),
        ("BOOKMARK", "3"),
    ]
    assert script.requests[0][1:3] == (
        "/api/v1/namespaces/x/pods",
        {
            "watch": "true",
            "resourceVersion": "1",
            "labelSelector": "a=b",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": "60",
        },
    )


async def test_events_may_come_in_any_pieces() -> None:
    text = event("ADDED", "a" * 300_000, 2) + event("MODIFIED", "a", 3)
    cuts = [text[i : i + 7919] for i in range(0, len(text), 7919)]
    assert await watched(lambda r: stream(r, *cuts)) == [("ADDED", "2"), ("MODIFIED", "3")]


@pytest.mark.parametrize(
    ("parts", "cut", "kind"),
    [
        (
            [event("ADDED", "a", 2), b'{"type": "ERROR", "object": {"code": 410, "reason": "Expired"}}\n'],
            False,
            Gone,
        ),
        ([event("ADDED", "a", 2), b'{"type": "ERROR", "object": {"code": 500}}\n'], False, ServerError),
        ([event("ADDED", "a", 2), event("ADDED", "b", 3)[:20]], True, Unreachable),
        ([event("ADDED", "a", 2), event("ADDED", "b", 3)[:20]], False, Unreachable),
        ([event("ADDED", "a", 2), b"<html>\n"], False, ServerError),
        ([event("ADDED", "a", 2), b'{"type": "LATER", "object": {}}\n'], False, ServerError),
        ([event("ADDED", "a", 2), b'{"type": "ADDED"}\n'], False, ServerError),
    ],
)
async def test_a_watch_that_breaks_gives_what_it_had_and_then_says_why(
    parts: list[bytes], cut: bool, kind: type[ApiError]
) -> None:
    async with client_of(lambda r: stream(r, *parts, pause=0.02, cut=cut)) as api:
        events = api.watch(PODS, "x", resource_version="1")
        assert (await anext(events))[1]["metadata"]["name"] == "a"
        with pytest.raises(kind):
            await anext(events)


async def test_a_watch_on_a_silent_path_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandbox_api.kube.client.WATCH_GRACE", 0.0)
    with pytest.raises(Unreachable, match="no answer in time"):
        await watched(lambda r: stream(r, event("ADDED", "a", 2), pause=30), timeout_seconds=0.3)


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_over_tls_a_cancelled_request_leaves_no_socket_on_either_event_loop(new_loop, certificate):
    served = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    served.load_cert_chain(certificate)
    trusted = ssl.create_default_context(cafile=str(certificate))
    asked = asyncio.Event()

    async def handler(request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/slow"):
            asked.set()
            await asyncio.sleep(30)
        return web.json_response({"kind": "Pod", "metadata": {"name": "quick"}})

    async def forgotten() -> None:
        for _ in range(50):
            gc.collect()
            if not any(each._opened for each in gc.get_objects() if isinstance(each, _Connector)):
                return
            await asyncio.sleep(0.02)
        raise AssertionError("a closed connection is still remembered")

    async def talk() -> None:
        async with serving(handler, served) as url:
            client = KubeClient(StaticCredentials(Endpoint(url, ssl=trusted)))
            async with client:
                assert (await client.get(PODS, "quick", "ns"))["metadata"]["name"] == "quick"
                slow = asyncio.create_task(client.get(PODS, "slow", "ns"))
                await asked.wait()
                slow.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await slow
        await forgotten()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(talk())
    gc.collect()


@pytest.fixture
def certificate(tmp_path):
    """Key and self-signed certificate for 127.0.0.1, in one file."""
    both = tmp_path / "server.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    subject = ["-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "1"]
    files = ["-keyout", str(tmp_path / "key"), "-out", str(tmp_path / "certificate")]
    subprocess.run([*command, *subject, *files], check=True, capture_output=True)
    both.write_text((tmp_path / "key").read_text() + (tmp_path / "certificate").read_text())
    return both
