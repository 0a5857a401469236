"""Waiting for resources by watching them: no polling, every wait bounded by the caller."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from sandbox_api.kube import SANDBOXES, Api, ApiError, Gone, Object, Resource
from sandbox_api.v1alpha1 import Sandbox

from .failures import SandboxGoneError

_PAUSE = 0.2
#: The API server may be away for a moment; so many failures in a row are one too many.
_MAX_FAILURES = 8


async def follow_object(
    api: Api, resource: Resource, namespace: str, name: str
) -> AsyncGenerator[Object | None, None]:
    """States of one object, the present one first; None when it does not exist. Never ends by itself."""
    selector = f"metadata.name={name}"
    failures = 0
    version = ""
    while True:
        try:
            if not version:
                listed = await api.list(resource, namespace, field_selector=selector)
                version = listed.resource_version
                failures = 0
                yield listed.items[0] if listed.items else None
            events = api.watch(resource, namespace, resource_version=version, field_selector=selector)
            async with aclosing(events):
                async for kind, item in events:
                    failures = 0
                    version = item["metadata"]["resourceVersion"]
                    if kind == "DELETED":
                        yield None
                    elif kind != "BOOKMARK":
                        yield item
        except Gone:
            version = ""
        except ApiError as error:
            failures += 1
            if not error.retryable or failures > _MAX_FAILURES:
                raise
            version = ""
        await asyncio.sleep(_PAUSE * failures)


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
