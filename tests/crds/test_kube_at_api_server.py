"""The client and the reflector at a real API server: what the unit tests' played one takes for granted."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from sandbox_api.kube import (
    CONFIG_MAPS,
    NAMESPACES,
    SANDBOXES,
    AlreadyExists,
    Conflict,
    KubeClient,
    KubeconfigCredentials,
    NotFound,
    Reflector,
)

ME = "test"


@pytest.fixture
async def api(control_plane: Path) -> AsyncIterator[KubeClient]:
    async with KubeClient(KubeconfigCredentials(control_plane)) as client:
        yield client


@pytest.fixture
async def namespace(api: KubeClient) -> str:
    """A namespace of the test's own; there is no controller that could remove it."""
    name = f"kube-{uuid.uuid4().hex[:8]}"
    await api.create(NAMESPACES, {"metadata": {"name": name}}, field_manager=ME)
    return name


def config_map(name: str, **data: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": {"test": "yes"}}, "data": data}


async def test_the_life_of_an_object(api: KubeClient, namespace: str) -> None:
    made = await api.create(CONFIG_MAPS, config_map("a", x="1"), namespace, field_manager=ME)
    with pytest.raises(AlreadyExists):
        await api.create(CONFIG_MAPS, config_map("a"), namespace, field_manager=ME)

    applied = await api.apply(CONFIG_MAPS, config_map("a", x="2"), namespace, field_manager="other")
    assert applied["data"] == {"x": "2"}
    with pytest.raises(Conflict) as caught:
        await api.apply(CONFIG_MAPS, config_map("a", x="3"), namespace, field_manager=ME, force=False)
    assert caught.value.causes[0]["reason"] == "FieldManagerConflict"

    with pytest.raises(Conflict):
        await api.replace(CONFIG_MAPS, {**made, "data": {"x": "4"}}, field_manager=ME)
    replaced = await api.replace(CONFIG_MAPS, {**applied, "data": {"x": "4"}}, field_manager=ME)
    patched = await api.patch(CONFIG_MAPS, "a", namespace, {"data": {"x": None, "y": "5"}}, field_manager=ME)
    assert patched["data"] == {"y": "5"}
    operations = [{"op": "replace", "path": "/data/y", "value": "6"}]
    assert (await api.patch(CONFIG_MAPS, "a", namespace, operations, kind="json", field_manager=ME))[
        "data"
    ] == {"y": "6"}
    stale = {"metadata": {"resourceVersion": replaced["metadata"]["resourceVersion"]}, "data": {"z": "7"}}
    with pytest.raises(Conflict):
        await api.patch(CONFIG_MAPS, "a", namespace, stale, field_manager=ME)

    with pytest.raises(Conflict):
        await api.delete(CONFIG_MAPS, "a", namespace, uid="another")
    await api.delete(CONFIG_MAPS, "a", namespace, uid=made["metadata"]["uid"], dry_run=True)
    await api.get(CONFIG_MAPS, "a", namespace)
    await api.delete(CONFIG_MAPS, "a", namespace, uid=made["metadata"]["uid"], propagation="Background")
    with pytest.raises(NotFound):
        await api.get(CONFIG_MAPS, "a", namespace)


async def test_pages_and_selectors(api: KubeClient, namespace: str) -> None:
    await asyncio.gather(
        *(api.create(CONFIG_MAPS, config_map(f"m{i}"), namespace, field_manager=ME) for i in range(7))
    )
    listed = await api.list(CONFIG_MAPS, namespace, label_selector="test in (yes)", limit=3)
    assert [item["metadata"]["name"] for item in listed.items] == [f"m{i}" for i in range(7)]
    assert {item["kind"] for item in listed.items} == {"ConfigMap"}
    one = await api.list(CONFIG_MAPS, namespace, field_selector="metadata.name=m3")
    assert len(one.items) == 1
    assert (await api.list(CONFIG_MAPS, namespace, label_selector="test!=yes")).items == []
    assert int(listed.resource_version) > 0


async def test_a_watch_takes_up_where_a_list_ended(api: KubeClient, namespace: str) -> None:
    listed = await api.list(CONFIG_MAPS, namespace)
    await api.create(CONFIG_MAPS, config_map("a"), namespace, field_manager=ME)
    await api.delete(CONFIG_MAPS, "a", namespace)
    watch = api.watch(CONFIG_MAPS, namespace, resource_version=listed.resource_version, timeout_seconds=1)
    async with aclosing(watch) as events, asyncio.timeout(20):
        seen = [kind async for kind, _ in events if kind != "BOOKMARK"]  # until the server ends it
    assert seen == ["ADDED", "DELETED"]


async def test_a_reflector_follows_sandboxes(api: KubeClient, namespace: str) -> None:
    events: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
    await api.create(SANDBOXES, {"metadata": {"name": "first"}, "spec": {}}, namespace, field_manager=ME)
    reflector = Reflector(
        api,
        SANDBOXES,
        lambda kind, item: events.put_nowait((kind, item["metadata"]["name"])),
        namespace=namespace,
    )
    running = asyncio.create_task(reflector.run())
    try:
        async with asyncio.timeout(20):
            await reflector.synced.wait()
            assert await events.get() == ("ADDED", "first")
            await api.create(
                SANDBOXES, {"metadata": {"name": "second"}, "spec": {}}, namespace, field_manager=ME
            )
            assert await events.get() == ("ADDED", "second")
            patch = {"spec": {"image": "a"}}
            await api.patch(SANDBOXES, "first", namespace, patch, field_manager=ME)
            assert await events.get() == ("MODIFIED", "first")
            await api.delete(SANDBOXES, "first", namespace)
            assert await events.get() == ("DELETED", "first")
    finally:
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running


async def test_raw(api: KubeClient) -> None:
    assert await api.raw("GET", "/readyz") == b"ok"
