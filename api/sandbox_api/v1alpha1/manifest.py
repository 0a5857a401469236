"""The manifest of a workspace: entries, environment and the paths beyond the workspace that it grants."""

from typing import Annotated, Literal

from pydantic import Field

from .base import ApiModel

#: Inline content of all entries together, in bytes as written in the resource (design decision: etcd objects
#: stay well below the API server's 1.5 MiB request limit, managed fields included).
MAX_INLINE_BYTES = 128 * 1024
MAX_ENTRIES = 512
MAX_PATH_BYTES = 512
MAX_PATH_LEVELS = 12

Name = Annotated[str, Field(min_length=1, max_length=253)]
#: Nine characters as `ls -l` shows them without the type: rwxr-x---.
PermissionString = Annotated[str, Field(pattern=r"^([r-][w-][x-]){3}$", max_length=9)]
EntryPath = Annotated[str, Field(min_length=1, max_length=MAX_PATH_BYTES)]


class KeyRef(ApiModel):
    """One key of a ConfigMap or Secret in the sandbox's namespace."""

    name: Name = Field(description="Name of the object.")
    key: Annotated[str, Field(min_length=1, max_length=253)] = Field(description="Key in its data.")


class ValueSource(ApiModel):
    """Where a value comes from; exactly one member."""

    config_map_key_ref: KeyRef | None = Field(None, description="A key of a ConfigMap.")
    secret_key_ref: KeyRef | None = Field(None, description="A key of a Secret.")


class File(ApiModel):
    """A file; exactly one of content, contentBase64 and contentFrom."""

    content: Annotated[str, Field(max_length=MAX_INLINE_BYTES)] | None = Field(
        None, description="The text of the file, as UTF-8."
    )
    content_base64: Annotated[str, Field(max_length=MAX_INLINE_BYTES)] | None = Field(
        None, description="The bytes of the file, in standard base64."
    )
    content_from: ValueSource | None = Field(
        None, description="A key of a ConfigMap or Secret that holds the content."
    )


class Dir(ApiModel):
    """A directory."""


class ObjectRef(ApiModel):
    """An object in the sandbox's namespace."""

    name: Name = Field(description="Name of the object.")


class CaRef(ApiModel):
    """A ConfigMap that holds certificates of private authorities."""

    name: Name = Field(description="Name of the ConfigMap.")
    key: Annotated[str, Field(min_length=1, max_length=253)] = Field(
        "ca.crt", description="Key that holds the PEM certificates."
    )


class GitRepo(ApiModel):
    """A git repository, cloned at depth 1; either host and repo, or url."""

    host: Annotated[str, Field(min_length=1, max_length=255)] | None = Field(
        None, description="Host that serves repo over https, such as github.com."
    )
    repo: Annotated[str, Field(min_length=1, max_length=512)] | None = Field(
        None, description="Path of the repository on the host, such as owner/name."
    )
    url: Annotated[str, Field(min_length=1, max_length=1024)] | None = Field(
        None,
        description="Whole URL (https://, ssh://, or http:// and git:// for hosts that the administrator allows), without credentials.",
    )
    ref: Annotated[str, Field(min_length=1, max_length=255)] | None = Field(
        None, description="Branch, tag or full commit id. Default: the remote's HEAD."
    )
    subpath: Annotated[str, Field(min_length=1, max_length=MAX_PATH_BYTES)] | None = Field(
        None, description="Directory of the repository that becomes the entry, without its history."
    )
    credentials_secret_ref: ObjectRef | None = Field(
        None,
        description="Secret with keys username and password (or token), or ssh-privatekey and known_hosts. Seen by the init container only.",
    )
    ca_config_map_ref: CaRef | None = Field(
        None, description="Certificates of the authority that signed the host's certificate."
    )


class LocalFile(ApiModel):
    """A file whose bytes the client sends after the pod has started."""


class LocalDir(ApiModel):
    """A directory whose content the client sends after the pod has started."""


class Entry(ApiModel):
    """What stands at one path of the workspace; exactly one of file, dir, gitRepo, localFile and localDir."""

    file: File | None = Field(None, description="A file with the given content.")
    dir: Dir | None = Field(None, description="An empty directory.")
    git_repo: GitRepo | None = Field(None, description="A git repository.")
    local_file: LocalFile | None = Field(None, description="A file that the client sends.")
    local_dir: LocalDir | None = Field(None, description="A directory that the client sends.")
    description: Annotated[str, Field(max_length=1024)] | None = Field(
        None, description="What the entry is for, shown to agents."
    )
    ephemeral: bool | None = Field(
        None, description="Left out when the workspace is persisted. Default: false."
    )
    permissions: PermissionString | None = Field(
        None, description="Permissions of the entry itself, such as rwxr-x---. Default: rwxr-xr-x."
    )


class EnvVar(ApiModel):
    """One environment variable of every command; exactly one of value and valueFrom."""

    name: Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[A-Za-z_][A-Za-z0-9_.-]*$")] = Field(
        description="Name of the variable."
    )
    value: Annotated[str, Field(max_length=32768)] | None = Field(
        None, description="Literal value. $(NAME) is not expanded."
    )
    value_from: ValueSource | None = Field(
        None, description="A key of a ConfigMap or Secret that holds the value."
    )


class PathGrant(ApiModel):
    """An absolute path of the container beyond the workspace that the file operations may use."""

    path: Annotated[str, Field(min_length=2, max_length=MAX_PATH_BYTES, pattern=r"^/")] = Field(
        description="Absolute path in the workspace container."
    )
    read_only: bool | None = Field(
        None, description="Refuse writes beneath it through the file operations. Default: false."
    )


class Manifest(ApiModel):
    """The contents of a fresh workspace."""

    root: Annotated[str, Field(min_length=2, max_length=255, pattern=r"^/")] | None = Field(
        None,
        description="Absolute path at which the workspace container sees the workspace. Default: /workspace.",
    )
    entries: Annotated[dict[EntryPath, Entry], Field(max_length=MAX_ENTRIES)] | None = Field(
        None, description="What stands in the workspace, by path relative to the root."
    )
    environment: Annotated[list[EnvVar], Field(max_length=256)] | None = Field(
        None, description="Environment of every command."
    )
    path_grants: Annotated[list[PathGrant], Field(max_length=32)] | None = Field(
        None, description="Paths beyond the workspace that the file operations may use."
    )


DEFAULT_ROOT: Literal["/workspace"] = "/workspace"
