"""The store, the keyed queue, and the settings."""

import asyncio
from typing import Any

import pytest
from sandbox_api.kube import PODS, SANDBOXES
from sandbox_operator.engine.queue import KeyedQueue
from sandbox_operator.engine.store import Store
from sandbox_operator.sandbox.names import owner_reference
from sandbox_operator.settings import Settings, SettingsError


def item(
    name: str = "a", version: int = 1, uid: str = "u", owner: str | None = None, **more: Any
) -> dict[str, Any]:
    references = [owner_reference("s", owner, "g/v1", "Sandbox")] if owner else []
    return {
        "metadata": {
            "name": name, "namespace": "ns", "uid": uid, "resourceVersion": str(version), "ownerReferences": references,
        },
        **more,
    }  # fmt: skip


@pytest.fixture
def store() -> Store:
    return Store({PODS: dict, SANDBOXES: dict})


KEY = ("ns", "a")


def test_an_older_state_never_replaces_a_newer_one(store: Store) -> None:
    assert store.put(PODS, item(version=9))
    assert not store.put(PODS, item(version=8))
    assert not store.put(PODS, item(version=9))
    assert store.put(PODS, item(version=10))
    assert store.get(PODS, KEY)["metadata"]["resourceVersion"] == "10"  # type: ignore[index]


def test_the_end_of_an_earlier_object_does_not_end_its_namesake(store: Store) -> None:
    store.put(PODS, item(uid="new", version=20))
    store.remove(PODS, KEY, "old", "15")
    assert store.get(PODS, KEY) is not None


def test_an_answer_that_comes_after_the_end_is_ignored(store: Store) -> None:
    store.put(PODS, item(version=1))
    store.remove(PODS, KEY, "u", "5")
    assert not store.put(PODS, item(version=4))
    assert not store.put(PODS, item(version=5))
    assert store.get(PODS, KEY) is None


def test_an_object_that_only_lost_its_label_comes_back_when_it_is_read(store: Store) -> None:
    store.put(PODS, item(version=1))
    store.remove(PODS, KEY, "u", "5")
    assert store.put(PODS, item(version=5), read=True)


def test_objects_are_found_by_the_uid_of_their_controller_only(store: Store) -> None:
    store.put(PODS, item("a", owner="x", uid="1"))
    store.put(PODS, item("b", owner="x", uid="2"))
    pretender = item("c", owner="x", uid="3")
    pretender["metadata"]["ownerReferences"][0]["controller"] = False
    store.put(PODS, pretender)
    assert [o["metadata"]["name"] for o in store.owned(PODS, "x")] == ["a", "b"]
    store.put(PODS, item("a", version=2, owner="y", uid="1"))
    store.remove(PODS, ("ns", "b"))
    assert store.owned(PODS, "x") == []


def test_a_list_removes_what_is_gone_and_keeps_what_came_meanwhile(store: Store) -> None:
    store.put(SANDBOXES, item("old", uid="1"))
    before = store.keys(SANDBOXES)
    store.put(SANDBOXES, item("fresh", uid="2"))
    store.replace(SANDBOXES, [item("listed", uid="3")], before)
    assert {key[1] for key in store.keys(SANDBOXES)} == {"fresh", "listed"}


def test_changes_are_told_once_each(store: Store) -> None:
    told: list[str] = []
    store.on_change = lambda resource, change, changed: told.append(change)
    store.put(PODS, item(version=1))
    store.put(PODS, item(version=1))
    store.put(PODS, item(version=2))
    store.remove(PODS, KEY)
    store.remove(PODS, KEY)
    assert told == ["new", "changed", "gone"]


async def test_a_key_asked_for_twice_is_handed_out_once() -> None:
    queue: KeyedQueue[str] = KeyedQueue()
    queue.add("a")
    queue.add("a")
    queue.add("b")
    assert [await queue.get(), await queue.get()] == ["a", "b"]
    assert len(queue) == 0


async def test_a_key_asked_for_while_it_is_worked_on_comes_again_and_not_beside() -> None:
    queue: KeyedQueue[str] = KeyedQueue()
    queue.add("a")
    await queue.get()
    queue.add("a")
    queue.add("a")
    assert len(queue) == 0
    queue.done("a")
    assert await queue.get() == "a"
    queue.done("a")
    assert len(queue) == 0


async def test_of_two_delays_the_earlier_counts_and_work_forgets_both() -> None:
    queue: KeyedQueue[str] = KeyedQueue()
    queue.add_after("a", 30)
    queue.add_after("a", 0.02)
    queue.add_after("a", 20)
    assert await asyncio.wait_for(queue.get(), 1) == "a"
    queue.done("a")
    queue.add("b")
    queue.add_after("b", 0.02)
    await queue.get()
    queue.done("b")
    await asyncio.sleep(0.05)
    assert len(queue) == 0
    queue.close()


async def test_failures_wait_longer_each_time_and_success_forgets_them() -> None:
    queue: KeyedQueue[str] = KeyedQueue()
    pauses = []
    for _ in range(6):
        queue.add("a")
        await queue.get()
        pauses.append(queue.failed("a"))
    assert pauses[5] > pauses[0]
    assert pauses[5] >= 0.8
    queue.add("a")
    await queue.get()
    queue.done("a")
    queue.add("a")
    await queue.get()
    assert queue.failed("a") <= 0.05
    queue.close()


async def test_a_cancelled_worker_loses_no_key() -> None:
    queue: KeyedQueue[str] = KeyedQueue()
    first, second = asyncio.create_task(queue.get()), asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    queue.add("a")
    first.cancel()
    assert await asyncio.wait_for(second, 1) == "a"


def test_settings_come_from_the_environment() -> None:
    settings = Settings.from_environment(
        {
            "SANDBOX_OPERATOR_WATCH_NAMESPACES": '["a", "b"]',
            "SANDBOX_OPERATOR_INSECURE_GIT_HOSTS": "x:80, y",
            "SANDBOX_OPERATOR_DEFAULT_START_TIMEOUT": "1m30s",
            "SANDBOX_OPERATOR_DEFAULT_RESOURCES": '{"limits": {"memory": "1Gi"}}',
            "SANDBOX_OPERATOR_PLATFORM_ASSIGNS_IDS": "true",
            "SANDBOX_OPERATOR_IDENTITY": "",
            "OTHER": "x",
            # What the kubelet adds for a Service of our name.
            "SANDBOX_OPERATOR_SERVICE_HOST": "10.0.0.1",
            "SANDBOX_OPERATOR_PORT_80_TCP_ADDR": "10.0.0.1",
            "SANDBOX_OPERATOR_PORT": "tcp://10.0.0.1:80",
        }
    )
    assert settings.watch_namespaces == ("a", "b")
    assert settings.insecure_git_hosts == ("x:80", "y")
    assert settings.default_start_timeout == 90
    assert settings.default_resources.to_wire() == {"limits": {"memory": "1Gi"}}
    assert settings.platform_assigns_ids


@pytest.mark.parametrize(
    ("name", "value"),
    [("WORKERS", "many"), ("DEFAULT_EGRESS", "Some"), ("DEFAULT_RESOURCES", "{"), ("DEFAULT_START_TIMEOUT", "soon"),
     ("DEFAULT_WORKSPACE_SIZE_LIMIT", "10GB"), ("DEFALT_IMAGE", "x")],
)  # fmt: skip
def test_settings_that_make_no_sense_are_named(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=f"SANDBOX_OPERATOR_{name}"):
        Settings.from_environment({f"SANDBOX_OPERATOR_{name}": value})
