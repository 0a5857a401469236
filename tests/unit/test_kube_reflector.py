"""The reflector over an API that is played from memory: what a subscriber hears on bad days."""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from sandbox_api.kube import (
    PODS,
    Api,
    Gone,
    ListResult,
    NotFound,
    Reflector,
    ServerError,
    TooManyRequests,
    Unreachable,
)
from sandbox_api.kube.reflector import EventType


def pod(name: str, version: int, uid: str = "") -> dict[str, Any]:
    return {
        "metadata": {
            "name": name,
            "namespace": "x",
            "uid": uid or name,
            "resourceVersion": str(version),
            "labels": {"a": "b"},
            "managedFields": [],
        },
        "spec": {},
    }


class Played:
    """Lists and watches in the given order; when the watches run out, one that stays silent."""

    def __init__(self, lists: list[Any], watches: list[list[Any]]) -> None:
        self.lists, self.watches = lists, watches
        self.calls: list[str] = []
        self.closed = 0

    async def list(self, *_: Any, **__: Any) -> ListResult:
        self.calls.append("list")
        answer = self.lists.pop(0) if len(self.lists) > 1 else self.lists[0]
        if isinstance(answer, Exception):
            raise answer
        version, items = answer
        return ListResult(items, version)

    async def watch(self, *_: Any, **settings: Any) -> AsyncGenerator[tuple[str, Any], None]:
        self.calls.append(f"watch {settings['resource_version']}")
        try:
            for step in self.watches.pop(0) if self.watches else [None]:
                if isinstance(step, Exception):
                    raise step
                if step is None:
                    await asyncio.sleep(settings["timeout_seconds"])
                else:
                    yield step
        finally:
            self.closed += 1


class Seen:
    """A subscriber."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, str]] = []
        self.items: dict[tuple[str, str], dict[str, Any]] = {}
        self.changed = asyncio.Event()

    def __call__(self, kind: EventType, item: dict[str, Any]) -> None:
        metadata = item["metadata"]
        self.events.append((kind, metadata["name"], metadata["resourceVersion"]))
        self.items[kind, metadata["name"]] = item
        self.changed.set()

    async def wait_for(self, count: int) -> None:
        async with asyncio.timeout(10):
            while len(self.events) < count:
                self.changed.clear()
                await self.changed.wait()


@asynccontextmanager
async def following(api: Played, seen: Any, **settings: Any) -> AsyncIterator[Reflector]:
    reflector = Reflector(cast("Api", api), PODS, seen, **settings)
    task = asyncio.create_task(reflector.run())
    try:
        yield reflector
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, 1)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandbox_api.kube.reflector._BACKOFF_FIRST", 0.01)
    monkeypatch.setattr("sandbox_api.kube.reflector._BACKOFF_LAST", 0.05)


async def test_it_lists_then_watches_and_says_when_it_is_in_step() -> None:
    seen = Seen()
    api = Played([("5", [pod("a", 1)])], [[("MODIFIED", pod("a", 6)), ("ADDED", pod("b", 7)), None]])
    async with following(api, seen) as reflector:
        assert not reflector.synced.is_set()
        await asyncio.wait_for(reflector.synced.wait(), 5)
        assert seen.events[0] == ("ADDED", "a", "1")
        await seen.wait_for(3)
    assert seen.events[1:] == [("MODIFIED", "a", "6"), ("ADDED", "b", "7")]
    assert api.calls == ["list", "watch 5"]
    assert api.closed == 1  # also on cancellation


async def test_bookmarks_move_the_start_of_the_next_watch() -> None:
    seen = Seen()
    api = Played(
        [("5", [])], [[("BOOKMARK", {"metadata": {"resourceVersion": "9"}})], [("ADDED", pod("a", 10)), None]]
    )
    async with following(api, seen):
        await seen.wait_for(1)
    assert api.calls == ["list", "watch 5", "watch 9"]


@pytest.mark.parametrize("broken", [Unreachable(), TooManyRequests(429, "", "", retry_after=0.01)])
async def test_a_broken_connection_goes_on_where_it_was(broken: Exception) -> None:
    seen = Seen()
    api = Played([("5", [])], [[("ADDED", pod("a", 6)), broken], [("MODIFIED", pod("a", 7)), None]])
    async with following(api, seen):
        await seen.wait_for(2)
    assert api.calls == ["list", "watch 5", "watch 6"]


@pytest.mark.parametrize(
    "end", [Gone(410, "Expired", ""), ServerError(500, "", ""), NotFound(404, "", ""), RuntimeError("odd")]
)
async def test_after_other_errors_a_list_tells_what_was_missed(end: Exception) -> None:
    seen = Seen()
    api = Played(
        [
            ("5", [pod("stays", 1), pod("changes", 2), pod("goes", 3), pod("returns", 4, "first")]),
            ("9", [pod("stays", 1), pod("changes", 7), pod("comes", 8), pod("returns", 9, "second")]),
        ],
        [[end], [None]],
    )
    async with following(api, seen):
        await seen.wait_for(9)
        await asyncio.sleep(0.05)
    assert seen.events[4:] == [
        ("MODIFIED", "changes", "7"),
        ("ADDED", "comes", "8"),
        ("DELETED", "returns", "4"),
        ("ADDED", "returns", "9"),
        ("DELETED", "goes", "3"),
    ]
    vanished = seen.items["DELETED", "goes"]
    assert (vanished["apiVersion"], vanished["kind"]) == ("v1", "Pod")
    assert vanished["metadata"]["labels"] == {"a": "b"}
    assert "managedFields" not in vanished["metadata"]
    assert api.calls == ["list", "watch 5", "list", "watch 9"]


async def test_what_a_watch_deleted_is_not_deleted_again_by_a_list() -> None:
    seen = Seen()
    api = Played(
        [("5", [pod("a", 1)]), ("9", [])],
        [[("DELETED", pod("a", 6)), Gone(410, "Expired", "")], [("ADDED", pod("b", 10)), None]],
    )
    async with following(api, seen):
        await seen.wait_for(3)
    assert seen.events == [("ADDED", "a", "1"), ("DELETED", "a", "6"), ("ADDED", "b", "10")]


async def test_a_list_that_fails_is_tried_until_it_works(caplog: pytest.LogCaptureFixture) -> None:
    seen = Seen()
    failures = [ServerError(500, "", "down"), RuntimeError("odd"), NotFound(404, "NotFound", "no such kind")]
    api = Played([*failures, ("5", [pod("a", 1)])], [])
    with caplog.at_level(logging.INFO):
        async with following(api, seen) as reflector:
            await asyncio.wait_for(reflector.synced.wait(), 5)
    assert api.calls[:5] == ["list"] * 4 + ["watch 5"]
    assert "no such kind" in caplog.text


async def test_a_server_that_always_says_gone_is_not_hammered() -> None:
    api = Played([("5", [])], [[Gone(410, "Expired", "")] for _ in range(1000)])
    async with following(api, Seen()):
        await asyncio.sleep(0.3)
    assert 3 < len(api.calls) < 60


async def test_watches_that_end_at_once_are_not_hammered() -> None:
    api = Played([("5", [])], [[] for _ in range(1000)])
    async with following(api, Seen()):
        await asyncio.sleep(0.3)
    assert 3 < len(api.calls) < 60


async def test_what_a_subscriber_failed_on_is_told_again() -> None:
    failed: list[str] = []

    class Fragile(Seen):
        def __call__(self, kind: EventType, item: dict[str, Any]) -> None:
            name = f"{kind} {item['metadata']['name']}"
            if name not in failed:
                failed.append(name)
                raise RuntimeError("not now")
            super().__call__(kind, item)

    seen = Fragile()
    api = Played(
        [("5", [pod("a", 1)]), ("5", [pod("a", 1)]), ("6", []), ("7", [])],
        [[Gone(410, "", "")], [Gone(410, "", "")], [Gone(410, "", "")], [None]],
    )
    async with following(api, seen) as reflector:
        await seen.wait_for(2)
        assert reflector.synced.is_set()
    assert seen.events == [("ADDED", "a", "1"), ("DELETED", "a", "1")]


async def test_it_lists_now_and_then_without_being_asked() -> None:
    seen = Seen()
    api = Played([("5", [pod("ghost", 1)]), ("6", [])], [])
    async with following(api, seen, relist_interval=0.1):
        await seen.wait_for(2)
    assert seen.events == [("ADDED", "ghost", "1"), ("DELETED", "ghost", "1")]
    assert api.calls[:3] == ["list", "watch 5", "list"]
