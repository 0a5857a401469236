"""The plan of the init container: what of a manifest it needs to know, and where the mounted sources lie.

Pure. The form is fixed in docs/pod.md; ``sandbox_workspace.plan`` reads it.
"""

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

from sandbox_api.v1alpha1 import Entry, GitRepo, Manifest, ValueSource
from sandbox_api.v1alpha1.quantity import amount

VERSION = 1
#: Larger plans travel in a ConfigMap: annotations of an object have 256 KiB in all, an environment variable
#: 128 KiB.
MAX_ANNOTATION_BYTES = 64 * 1024
DEFAULT_MODE = "0755"
#: Keys of a Secret with git credentials, as `sandbox_api.v1alpha1.GitRepo` documents them.
GIT_SECRET_KEYS = ("username", "password", "token", "ssh-privatekey", "known_hosts")


@dataclass(frozen=True, slots=True)
class Source:
    """Keys of one ConfigMap or Secret that the init container sees below its directory of sources.

    Attributes:
        kind: ``configMap`` or ``secret``, as a projected volume calls them.
        name: The object's name.
        items: Key and path below the directory of sources.
    """

    kind: str
    name: str
    items: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class MaterializePlan:
    """The plan as text, and what must be mounted for it."""

    text: str
    digest: str
    sources: tuple[Source, ...]

    @property
    def fits_annotation(self) -> bool:
        """Whether it travels in the pod's annotation."""
        return len(self.text.encode()) <= MAX_ANNOTATION_BYTES


@dataclass(slots=True)
class _Sources:
    """Collects sources; the same object is mounted once for files."""

    found: dict[tuple[str, str], dict[str, str]] = field(default_factory=dict)
    git: list[Source] = field(default_factory=list)

    def file(self, source: ValueSource) -> tuple[str, str]:
        """Path below the directory of sources, and how people call it."""
        secret, config = source.secret_key_ref, source.config_map_key_ref
        ref, kind, word = (secret, "secret", "Secret") if secret else (config, "configMap", "ConfigMap")
        if ref is None:
            raise ValueError("contentFrom names neither a ConfigMap nor a Secret")
        items = self.found.setdefault((kind, ref.name), {})
        index = list(self.found).index((kind, ref.name))
        items[ref.key] = f"{index}/{ref.key}"
        return items[ref.key], f"{word} {ref.name}, key {ref.key}"

    def all(self) -> tuple[Source, ...]:
        files = (Source(kind, name, tuple(items.items())) for (kind, name), items in self.found.items())
        return (*files, *self.git)


def materialize_plan(
    manifest: Manifest | None,
    *,
    insecure_hosts: tuple[str, ...] = (),
    git_timeout: float = 300.0,
    workspace_size: str | None = None,
) -> MaterializePlan:
    """Make the plan of a manifest that has passed validation.

    Args:
        manifest: The manifest.
        insecure_hosts: Hosts that git may reach without TLS.
        git_timeout: Seconds that a repository may take.
        workspace_size: What the volume may hold, as a quantity.
    """
    sources = _Sources()
    entries: list[dict[str, Any]] = []
    has_git = False
    for path, entry in sorted(((manifest and manifest.entries) or {}).items(), key=lambda e: e[0].split("/")):
        entries.append(_entry(path, entry, sources))
        has_git = has_git or entry.git_repo is not None
    digest = hashlib.blake2b(_canonical(entries).encode("utf-8", "replace"), digest_size=32).hexdigest()
    plan: dict[str, Any] = {"version": VERSION, "digest": digest, "entries": entries}
    if workspace_size is not None:
        plan["workspaceBytes"] = int(amount(workspace_size))
    if has_git:
        plan["git"] = {"insecureHosts": list(insecure_hosts), "timeoutSeconds": int(git_timeout)}
    return MaterializePlan(json.dumps(plan, ensure_ascii=False, separators=(",", ":")), digest, sources.all())


def awaits_upload(manifest: Manifest | None) -> bool:
    """Whether the client has to send something before the workspace is whole."""
    entries = (manifest and manifest.entries) or {}
    return any(e.local_file is not None or e.local_dir is not None for e in entries.values())


def octal(permissions: str | None) -> str:
    """``rwxr-x---`` as ``0750``."""
    if permissions is None:
        return DEFAULT_MODE
    bits = "".join("0" if c == "-" else "1" for c in permissions)
    return f"0{int(bits, 2):03o}"


def git_url(repo: GitRepo) -> str:
    """The URL of a repository; host and repo mean https."""
    if repo.url is not None:
        return repo.url
    path = repo.repo or ""
    return f"https://{repo.host}/{path if path.endswith('.git') else path + '.git'}"


def _entry(path: str, entry: Entry, sources: _Sources) -> dict[str, Any]:
    result: dict[str, Any] = {"path": path}
    if entry.file is not None:
        result["kind"] = "file"
        if entry.file.content is not None:
            result["content"] = entry.file.content
        elif entry.file.content_base64 is not None:
            result["contentBase64"] = _standard_base64(entry.file.content_base64)
        elif entry.file.content_from is not None:
            result["source"], result["sourceName"] = sources.file(entry.file.content_from)
    elif entry.git_repo is not None:
        result |= {"kind": "git"} | _git(entry.git_repo, sources)
    elif entry.local_dir is not None:
        result["kind"] = "upload-dir"
    elif entry.local_file is not None:
        result["kind"] = "upload-file"
    else:
        result["kind"] = "dir"
    result["mode"] = octal(entry.permissions)
    return result


def _git(repo: GitRepo, sources: _Sources) -> dict[str, Any]:
    result: dict[str, Any] = {"url": git_url(repo)}
    if repo.ref is not None:
        result["ref"] = repo.ref
    if repo.subpath is not None:
        result["subpath"] = repo.subpath
    number = len(sources.git)
    if repo.credentials_secret_ref is not None:
        folder = f"git-{number}"
        items = tuple((key, f"{folder}/{key}") for key in GIT_SECRET_KEYS)
        sources.git.append(Source("secret", repo.credentials_secret_ref.name, items))
        result["credentials"] = folder
    if repo.ca_config_map_ref is not None:
        path = f"git-{number}-ca/ca.crt"
        ref = repo.ca_config_map_ref
        sources.git.append(Source("configMap", ref.name, ((ref.key, path),)))
        result["ca"] = path
    return result


def _standard_base64(text: str) -> str:
    """What the API admits, in the strict form: without line breaks, with padding."""
    text = text.replace("\n", "").replace("\r", "")
    return text + "=" * (-len(text) % 4)


def _canonical(entries: list[dict[str, Any]]) -> str:
    return json.dumps(entries, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
