"""Waiting for resources by watching them: no polling, every wait bounded by the caller."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

from sandbox_api.kube import PODS, SANDBOXES, Api, ApiError, Gone, Object, Resource
from sandbox_api.v1alpha1 import Sandbox

from .failures import SandboxGoneError

#: On every child of a sandbox, with the sandbox's UID as its value.
SANDBOX_UID = "sandbox-operator.dev/sandbox-uid"
_PAUSE = 0.2
#: The API server may be away for a moment; so many failures in a row are one too many.
_MAX_FAILURES = 8


async def follow(
    api: Api,
    resource: Resource,
    namespace: str,
    *,
    field_selector: str | None = None,
    label_selector: str | None = None,
) -> AsyncGenerator[Mapping[str, Object], None]:
    """All objects that match, by name: what there is now, and again after each change. Never ends by itself."""
    failures = 0
    version = ""
    known: dict[str, Object] = {}
    while True:
        try:
            if not version:
                listed = await api.list(
                    resource, namespace, field_selector=field_selector, label_selector=label_selector
                )
                version = listed.resource_version
                failures = 0
                known = {item["metadata"]["name"]: item for item in listed.items}
                yield known
            async with aclosing(
                api.watch(
                    resource,
                    namespace,
                    resource_version=version,
                    field_selector=field_selector,
                    label_selector=label_selector,
                )
            ) as events:
                async for kind, item in events:
                    failures = 0
                    version = item["metadata"]["resourceVersion"]
                    if kind == "BOOKMARK":
                        continue
                    if kind == "DELETED":
                        known.pop(item["metadata"]["name"], None)
                    else:
                        known[item["metadata"]["name"]] = item
                    yield known
        except Gone:
            version = ""
        except ApiError as error:
            failures += 1
            if not error.retryable or failures > _MAX_FAILURES:
                raise
            version = ""
        await asyncio.sleep(_PAUSE * failures)


async def follow_object(
    api: Api, resource: Resource, namespace: str, name: str
) -> AsyncGenerator[Object | None, None]:
    """States of one object, the present one first; None when it does not exist. Never ends by itself."""
    states = follow(api, resource, namespace, field_selector=f"metadata.name={name}")
    async with aclosing(states):
        async for known in states:
            yield known.get(name)


async def follow_pods(api: Api, namespace: str, sandbox_uid: str) -> AsyncGenerator[list[Object], None]:
    """The pods of a sandbox that are not ending. A label alone makes no pod ours: its owner must be the sandbox."""
    states = follow(api, PODS, namespace, label_selector=f"{SANDBOX_UID}={sandbox_uid}")
    async with aclosing(states):
        async for known in states:
            yield [pod for pod in known.values() if _belongs(pod, sandbox_uid)]


def _belongs(pod: Object, sandbox_uid: str) -> bool:
    metadata = pod["metadata"]
    owners = metadata.get("ownerReferences") or ()
    return not metadata.get("deletionTimestamp") and any(o.get("uid") == sandbox_uid for o in owners)


async def follow_sandbox(
    api: Api, namespace: str, name: str, uid: str | None = None
) -> AsyncGenerator[Sandbox, None]:
    """States of one sandbox, the present one first.

    Raises:
        SandboxGoneError: It is not there, is being deleted, or is another one of the same name.
    """
    where = f"{namespace}/{name}"
    async with aclosing(follow_object(api, SANDBOXES, namespace, name)) as states:
        async for state in states:
            if state is None:
                raise SandboxGoneError(where)
            sandbox = Sandbox.model_validate(state)
            if uid and sandbox.metadata.uid != uid:
                raise SandboxGoneError(where, "another sandbox has taken its name")
            if sandbox.metadata.deletion_timestamp:
                raise SandboxGoneError(where, "it is being deleted")
            yield sandbox
