"""The SDK's manifest as the manifest of a Sandbox, plus what does not fit into a resource.

Nothing is dropped silently: what this version cannot build is refused with one sentence before anything is
made. What is too much for a resource (inline content beyond its limit, more entries, deeper paths) becomes an
upload, which the session carries after the start. Values that may be secrets go to a Secret, never into the
resource.
"""

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from agents.sandbox.entries import BaseEntry, Dir, File, GitRepo, LocalDir, LocalFile
from agents.sandbox.entries import Mount as SdkMount
from agents.sandbox.errors import InvalidManifestPathError
from agents.sandbox.manifest import Manifest as SdkManifest
from agents.sandbox.types import Permissions
from agents.sandbox.workspace_paths import SandboxPathGrant
from pydantic import ValidationError
from sandbox_api import v1alpha1 as api
from sandbox_api.v1alpha1 import MAX_ENTRIES, MAX_INLINE_CHARACTERS, MAX_PATH_BYTES, MAX_PATH_LEVELS
from sandbox_api.v1alpha1.paths import is_bounded

from .errors import configuration_error

#: The whole plan travels with the pod; beyond these, content is better uploaded.
MAX_VALUE = 32768
MAX_VARIABLES = 256
MAX_DESCRIPTION = 1024
#: As the SDK and the operator have it.
DEFAULT_PERMISSIONS = "rwxr-xr-x"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ufffe\uffff]")


@dataclass(frozen=True, slots=True)
class Upload:
    """An entry that the client carries: content, or a source on this machine; without both a directory."""

    path: str
    mode: int
    content: bytes | None = None
    source: LocalFile | LocalDir | None = None


@dataclass(frozen=True, slots=True)
class Mapped:
    """A manifest, taken apart.

    Attributes:
        manifest: For the resource.
        uploads: To be sent once the pod runs, parents first.
        secret_values: For the Secret that the resource refers to, by key.
        awaits_upload: Whether the operator waits for word that the uploads are complete.
    """

    manifest: api.Manifest
    uploads: tuple[Upload, ...] = ()
    secret_values: Mapping[str, str] = field(default_factory=dict, repr=False)
    awaits_upload: bool = False


async def map_manifest(manifest: SdkManifest, *, secret_name: str, only_ephemeral: bool = False) -> Mapped:
    """As :func:`plan_manifest`, with the values of the environment looked up."""
    mapped = plan_manifest(manifest, secret_name=secret_name, only_ephemeral=only_ephemeral)
    if not mapped.secret_values:
        return mapped
    resolved = await manifest.environment.resolve()
    for key in mapped.secret_values:
        if "\0" in resolved[key]:
            raise configuration_error(f"the value of the variable {key} holds a zero byte")
    return replace(mapped, secret_values={key: resolved[key] for key in mapped.secret_values})


def plan_manifest(manifest: SdkManifest, *, secret_name: str, only_ephemeral: bool = False) -> Mapped:
    """Map a manifest without looking values up; ``secret_values`` then holds their names only.

    Args:
        manifest: The SDK's.
        secret_name: The Secret that will hold the values which may be secret.
        only_ephemeral: Leave durable entries out: they come from a snapshot.

    Raises:
        ConfigurationError: It asks for what this backend cannot do.
        InvalidManifestPathError: A path leaves the workspace.
    """
    entries, uploads = _entries(manifest, only_ephemeral=only_ephemeral)
    plain, secret_keys = _environment(manifest)
    environment: list[api.EnvVar] = []
    for name in manifest.environment.value:
        if name in plain:
            environment.append(api.EnvVar(name=name, value=plain[name]))
        else:
            reference = api.KeyRef(name=secret_name, key=name)
            environment.append(api.EnvVar(name=name, value_from=api.ValueSource(secret_key_ref=reference)))
    return Mapped(
        manifest=_checked(manifest, entries, environment),
        uploads=tuple(uploads),
        secret_values=dict.fromkeys(secret_keys, ""),
        awaits_upload=any(e.local_file is not None or e.local_dir is not None for e in entries.values()),
    )


def attached_manifest(manifest: api.Manifest | None) -> SdkManifest:
    """What the SDK must know of a workspace that somebody else has filled: its root and grants."""
    if manifest is None:
        return SdkManifest()
    grants = tuple(
        SandboxPathGrant(path=grant.path, read_only=bool(grant.read_only))
        for grant in manifest.path_grants or ()
    )
    return SdkManifest(root=manifest.root or api.DEFAULT_ROOT, extra_path_grants=grants)


def _checked(
    manifest: SdkManifest, entries: dict[str, api.Entry], environment: list[api.EnvVar]
) -> api.Manifest:
    fields: dict[str, Any] = {}
    if manifest.root != api.DEFAULT_ROOT:
        fields["root"] = manifest.root
    if entries:
        fields["entries"] = entries
    if environment:
        fields["environment"] = environment
    if grants := _grants(manifest):
        fields["path_grants"] = grants
    try:
        return api.Manifest(**fields)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise configuration_error(f"the manifest cannot be a Sandbox's: {where}: {first['msg']}") from None


def _entries(manifest: SdkManifest, *, only_ephemeral: bool) -> tuple[dict[str, api.Entry], list[Upload]]:
    if manifest.users or manifest.groups:
        raise configuration_error(
            "manifest.users, manifest.groups and run_as are not supported by this backend yet: "
            "everything runs as the pod's own user"
        )
    found: dict[str, BaseEntry] = {}
    ephemeral_parents: set[str] = set()
    for relative, entry in manifest.iter_entries():
        path = _path(relative)
        _refuse(path, entry)
        if entry.ephemeral or any(_is_beneath(path, parent) for parent in ephemeral_parents):
            ephemeral_parents.add(path)
        elif only_ephemeral:
            continue
        if path in found and not (isinstance(entry, Dir) and isinstance(found[path], Dir)):
            raise configuration_error(f"the manifest has two entries for {path!r}")
        found[path] = entry
    for path in found:
        for parent in _parents(path):
            if isinstance(found.get(parent), File | LocalFile):
                raise configuration_error(f"entry {path!r} lies beneath {parent!r}, which is a file")
            if isinstance(found.get(parent), GitRepo | LocalDir) and isinstance(found[path], GitRepo):
                raise configuration_error(
                    f"repository {path!r} lies beneath {parent!r}, which is filled as a whole"
                )
    return _distribute(found)


def _distribute(found: dict[str, BaseEntry]) -> tuple[dict[str, api.Entry], list[Upload]]:
    """Which entries the resource holds, and which are carried: the biggest files, then the last entries."""
    inline = {path: _inline(entry) for path, entry in found.items() if isinstance(entry, File)}
    sizes = {
        path: len((f.content or "").encode()) + len(f.content_base64 or "") for path, f in inline.items()
    }
    too_much = sum(sizes.values()) - MAX_INLINE_CHARACTERS
    carried: set[str] = set()
    for path in sorted(sizes, key=lambda p: (-sizes[p], p)):
        if too_much <= 0:
            break
        carried.add(path)
        too_much -= sizes[path]

    outside = {path for path in found if not _fits(path)}
    outside |= (
        {path for path in found if any(parent in outside for parent in _parents(path))} if outside else set()
    )
    room = MAX_ENTRIES - sum(isinstance(entry, GitRepo) for entry in found.values())
    if room < 0:
        raise configuration_error(f"a manifest has at most {MAX_ENTRIES} repositories")
    entries: dict[str, api.Entry] = {}
    uploads: list[Upload] = []
    for path in sorted(found, key=lambda p: p.split("/")):
        entry = found[path]
        if isinstance(entry, GitRepo):
            if path in outside:
                raise configuration_error(
                    f"the path of repository {path!r} is longer than {MAX_PATH_BYTES} bytes, deeper than "
                    f"{MAX_PATH_LEVELS} levels, or the workspace itself"
                )
            entries[path] = _entry(entry, git_repo=_git(path, entry))
            continue
        in_resource = path not in outside and room > 0
        room -= in_resource
        mode = _mode(entry.permissions)
        if isinstance(entry, File):
            if path in carried or not in_resource:
                uploads.append(Upload(path, mode, content=entry.content))
                if in_resource:
                    entries[path] = _entry(entry, local_file=api.LocalFile())
            else:
                entries[path] = _entry(entry, file=inline[path])
        elif isinstance(entry, LocalFile):
            uploads.append(Upload(path, mode, source=entry))
            if in_resource:
                entries[path] = _entry(entry, local_file=api.LocalFile())
        elif isinstance(entry, LocalDir) and entry.src is not None:
            uploads.append(Upload(path, mode, source=entry))
            if in_resource:
                entries[path] = _entry(entry, local_dir=api.LocalDir())
        elif in_resource:
            entries[path] = _entry(entry, dir=api.Dir())
        elif path:
            uploads.append(Upload(path, mode))
    return entries, uploads


def _entry(entry: BaseEntry, **kind: Any) -> api.Entry:
    fields = dict(kind)
    if entry.description:
        fields["description"] = entry.description[:MAX_DESCRIPTION]
    if entry.ephemeral:
        fields["ephemeral"] = True
    permissions = str(entry.permissions)[1:]
    if permissions != DEFAULT_PERMISSIONS:
        fields["permissions"] = permissions
    try:
        return api.Entry(**fields)
    except ValidationError as error:
        raise configuration_error(f"an entry cannot be a Sandbox's: {error.errors()[0]['msg']}") from None


def _inline(entry: File) -> api.File:
    try:
        text = entry.content.decode()
    except UnicodeDecodeError:
        text = None
    if text is None or _CONTROL.search(text):
        return api.File.model_construct(
            {"content_base64"},
            content_base64=base64.b64encode(entry.content).decode(),
            content=None,
            content_from=None,
        )
    return api.File.model_construct({"content"}, content=text, content_base64=None, content_from=None)


def _git(path: str, entry: GitRepo) -> api.GitRepo:
    fields: dict[str, Any] = {"host": entry.host, "repo": entry.repo, "ref": entry.ref}
    if entry.subpath is not None:
        fields["subpath"] = entry.subpath.strip("/")
        if entry.subpath.startswith("/") or ".." in entry.subpath.split("/") or not fields["subpath"]:
            raise configuration_error(
                f"repository {path!r}: its subpath must be a path inside the repository"
            )
    try:
        return api.GitRepo(**fields)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        raise configuration_error(f"repository {path!r}: {first['msg']}") from None


def _environment(manifest: SdkManifest) -> tuple[dict[str, str], list[str]]:
    """Plain values that a resource can hold, and the names of those that go to a Secret."""
    plain: dict[str, str] = {}
    secret: list[str] = []
    for name, value in manifest.environment.value.items():
        if not _VARIABLE.fullmatch(name) or len(name) > MAX_VARIABLES:
            raise configuration_error(
                f"{name!r} cannot be the name of an environment variable in a container"
            )
        if isinstance(value, str):
            if "\0" in value:
                raise configuration_error(f"the value of the variable {name} holds a zero byte")
            if len(value) <= MAX_VALUE:
                plain[name] = value
                continue
        secret.append(name)
    if len(manifest.environment.value) > MAX_VARIABLES:
        raise configuration_error(f"a manifest has at most {MAX_VARIABLES} environment variables")
    return plain, secret


def _grants(manifest: SdkManifest) -> list[api.PathGrant]:
    grants: list[api.PathGrant] = []
    for grant in manifest.extra_path_grants:
        if grant.host_path is not None:
            raise configuration_error(
                f"the path grant {grant.path} has a host_path: client and sandbox share no machine here"
            )
        fields: dict[str, Any] = {"path": grant.path}
        if grant.read_only:
            fields["read_only"] = True
        try:
            grants.append(api.PathGrant(**fields))
        except ValidationError as error:
            raise configuration_error(
                f"the path {grant.path} cannot be granted: {error.errors()[0]['msg']}"
            ) from None
    return grants


def _refuse(path: str, entry: BaseEntry) -> None:
    if entry.group is not None:
        raise configuration_error(f"entry {path!r} has a group, which this backend does not support yet")
    if isinstance(entry, SdkMount):
        raise configuration_error(f"entry {path!r} is a mount, which this backend does not support yet")
    if not isinstance(entry, Dir | File | LocalFile | LocalDir | GitRepo):
        raise configuration_error(
            f"entry {path!r} is a {type(entry).__name__}, which this backend does not know"
        )
    if not path and not isinstance(entry, LocalDir | Dir):
        raise configuration_error(
            "the workspace itself can be no file and no repository: give the entry a path"
        )
    if not path and str(entry.permissions)[1:] != DEFAULT_PERMISSIONS:
        raise configuration_error("the permissions of the workspace itself cannot be set")


def _path(relative: Path) -> str:
    """The path as the resource has it: no ``.`` segments, empty for the workspace itself."""
    parts = [part for part in relative.as_posix().split("/") if part not in ("", ".")]
    if relative.is_absolute() or ".." in parts:
        raise InvalidManifestPathError(
            rel=relative.as_posix(), reason="absolute" if relative.is_absolute() else "escape_root"
        )
    path = "/".join(parts)
    if "\0" in path:
        raise configuration_error(f"the path of entry {path!r} holds a zero byte")
    try:
        path.encode()
    except UnicodeEncodeError:
        raise configuration_error(f"the path of entry {path!r} is not UTF-8") from None
    return path


def _fits(path: str) -> bool:
    return bool(path) and is_bounded(path)


def _parents(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:i]) for i in range(1, len(parts))]


def _is_beneath(path: str, parent: str) -> bool:
    return path != parent and (not parent or path.startswith(f"{parent}/"))


def _mode(permissions: Permissions) -> int:
    return permissions.to_mode() & 0o7777
