"""The manifest of a workspace: entries, environment and the paths beyond the workspace that it grants."""

import binascii
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from .base import ApiModel
from .git_rules import HOST_RULES, REF_RULES, REPO_RULES, URL_RULES
from .paths import (
    ENTRY_PATH_RULES,
    GRANT_RULES,
    MAX_PATH_BYTES,
    MAX_PATH_LEVELS,
    ROOT_RULES,
    SUBPATH_RULES,
)
from .rules import Rule, exactly_one, list_map
from .texts import ObjectName, bytes_cel, no_zero_byte, size, total

__all__ = [
    "DEFAULT_ROOT",
    "MAX_ENTRIES",
    "MAX_ENTRY_BYTES",
    "MAX_ENVIRONMENT_BYTES",
    "MAX_INLINE_CHARACTERS",
    "MAX_PATH_BYTES",
    "MAX_PATH_LEVELS",
    "CaRef",
    "Dir",
    "Entry",
    "EnvVar",
    "File",
    "GitRepo",
    "KeyRef",
    "LocalDir",
    "LocalFile",
    "Manifest",
    "ObjectRef",
    "PathGrant",
    "ValueSource",
]

DEFAULT_ROOT: Literal["/workspace"] = "/workspace"
MAX_ENTRIES = 512
#: Inline content of all entries together, as written in the resource. In characters, because counting bytes
#: costs more than the API server grants a rule; at six bytes a character in JSON it still fits into etcd.
MAX_INLINE_CHARACTERS = 128 * 1024
#: Beyond the limit of all content, so that the rule can say what to do instead.
_MAX_CONTENT = 1024 * 1024
#: Everything else of all entries together. One Sandbox must stay small: the operator keeps all of them in memory.
MAX_ENTRY_BYTES = 64 * 1024
#: Of all variables together, each with two bytes for what the kernel adds. No single one may have more.
MAX_ENVIRONMENT_BYTES = 128 * 1024

#: As Kubernetes has it: neither . nor .. nor beginning with two dots.
Key = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^(\.?[-_a-zA-Z0-9][-._a-zA-Z0-9]*)$")]
#: Nine characters as `ls -l` shows them without the type: rwxr-x---.
PermissionString = Annotated[str, Field(pattern=r"^([r-][w-][x-]){3}$", max_length=9)]


def _is_base64(text: str) -> bool:
    text = text.replace("\n", "").replace("\r", "")
    try:
        binascii.a2b_base64(text + "=" * (-len(text) % 4 if "=" not in text else 0), strict_mode=True)
    except ValueError:
        return False
    return True


def _inline(entries: "Mapping[str, Entry]") -> int:
    files = [entry.file for entry in entries.values() if entry.file is not None]
    return sum(len(file.content or "") + len(file.content_base64 or "") for file in files)


def _entries_size(entries: "Mapping[str, Entry]") -> int:
    found = 0
    for path, entry in entries.items():
        found += size(path) + size(entry.description)
        if (git := entry.git_repo) is not None:
            found += total((git.host, git.repo, git.url, git.ref, git.subpath))
            found += size(git.credentials_secret_ref.name if git.credentials_secret_ref else None)
            if (ca := git.ca_config_map_ref) is not None:
                found += size(ca.name) + (size(ca.key) if "key" in ca.model_fields_set else 0)
        if entry.file is not None and entry.file.content_from is not None:
            found += _source_size(entry.file.content_from)
    return found


def _source_size(source: "ValueSource") -> int:
    refs = (source.config_map_key_ref, source.secret_key_ref)
    return sum(size(ref.name) + size(ref.key) for ref in refs if ref is not None)


def _environment_size(variables: "Sequence[EnvVar]") -> int:
    return sum(
        size(variable.name)
        + size(variable.value)
        + 2
        + (_source_size(variable.value_from) if variable.value_from is not None else 0)
        for variable in variables
    )


def _source_cel(source: str) -> str:
    """CEL for the bytes of a :class:`ValueSource`."""
    parts = (
        f"(has({source}.{member}) ? {source}.{member}.name.size() + {source}.{member}.key.size() : 0)"
        for member in ("configMapKeyRef", "secretKeyRef")
    )
    return " + ".join(parts)


_ENTRIES_SIZE_CEL = (
    "self.map(k, bytes(k).size() + "
    + bytes_cel("self[k]", "description")
    + " + (!has(self[k].gitRepo) ? 0 : "
    + bytes_cel("self[k].gitRepo", "host", "repo", "url", "ref", "subpath")
    + " + (has(self[k].gitRepo.credentialsSecretRef) ? self[k].gitRepo.credentialsSecretRef.name.size() : 0)"
    " + (!has(self[k].gitRepo.caConfigMapRef) ? 0 : self[k].gitRepo.caConfigMapRef.name.size()"
    " + (has(self[k].gitRepo.caConfigMapRef.key) ? self[k].gitRepo.caConfigMapRef.key.size() : 0)))"
    " + (!has(self[k].file) || !has(self[k].file.contentFrom) ? 0 : "
    + _source_cel("self[k].file.contentFrom")
    + f")).sum() <= {MAX_ENTRY_BYTES}"
)
_ENVIRONMENT_SIZE_CEL = (
    "self.map(e, 2 + e.name.size() + "
    + bytes_cel("e", "value")
    + " + (!has(e.valueFrom) ? 0 : "
    + _source_cel("e.valueFrom")
    + f")).sum() <= {MAX_ENVIRONMENT_BYTES}"
)


class KeyRef(ApiModel):
    """One key of a ConfigMap or Secret in the sandbox's namespace."""

    name: ObjectName = Field(description="Name of the object.")
    key: Key = Field(description="Key in its data.")


class ValueSource(ApiModel):
    """Where a value comes from; exactly one member."""

    rules: ClassVar[tuple[Rule, ...]] = (exactly_one("configMapKeyRef", "secretKeyRef"),)

    config_map_key_ref: KeyRef | None = Field(None, description="A key of a ConfigMap.")
    secret_key_ref: KeyRef | None = Field(None, description="A key of a Secret.")


class File(ApiModel):
    """A file; exactly one of content, contentBase64 and contentFrom."""

    rules: ClassVar[tuple[Rule, ...]] = (exactly_one("content", "contentBase64", "contentFrom"),)

    content: Annotated[str, Field(max_length=_MAX_CONTENT)] | None = Field(
        None,
        description="The text of the file, as UTF-8. All inline content of a manifest together has at most "
        "131072 characters; use contentFrom, gitRepo or an upload by the client for more.",
    )
    content_base64: (
        Annotated[
            str,
            Field(max_length=_MAX_CONTENT, pattern=r"^[A-Za-z0-9+/\r\n]*={0,2}[\r\n]*$"),
            Rule("", "contentBase64 is not standard base64", _is_base64),
        ]
        | None
    ) = Field(
        None,
        description="The bytes of the file, in standard base64; line breaks are ignored. Counts as written "
        "towards the inline content of the manifest.",
    )
    content_from: ValueSource | None = Field(
        None, description="A key of a ConfigMap or Secret that holds the content, byte by byte."
    )


class Dir(ApiModel):
    """A directory."""


class ObjectRef(ApiModel):
    """An object in the sandbox's namespace."""

    name: ObjectName = Field(description="Name of the object.")


class CaRef(ApiModel):
    """A ConfigMap that holds certificates of private authorities."""

    name: ObjectName = Field(description="Name of the ConfigMap.")
    key: Key = Field("ca.crt", description="Key that holds the PEM certificates. Default: ca.crt.")


class GitRepo(ApiModel):
    """A git repository, cloned at depth 1; either host and repo, or url."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.url) ? !has(self.host) && !has(self.repo) : has(self.host) && has(self.repo)",
            "set either url, or host and repo together",
            lambda git: (
                (git.url is not None, git.host is not None, git.repo is not None)
                in {(True, False, False), (False, True, True)}
            ),
        ),
    )

    host: Annotated[str, Field(min_length=1, max_length=255), *HOST_RULES] | None = Field(
        None, description="Host that serves repo over https, such as github.com."
    )
    repo: Annotated[str, Field(min_length=1, max_length=512), *REPO_RULES] | None = Field(
        None, description="Path of the repository on the host, such as owner/name."
    )
    url: Annotated[str, Field(min_length=1, max_length=1024), *URL_RULES] | None = Field(
        None,
        description="Whole URL (https://, ssh://, or http:// and git:// for hosts that the administrator "
        "allows), without credentials.",
    )
    ref: Annotated[str, Field(min_length=1, max_length=255), *REF_RULES] | None = Field(
        None, description="Branch, tag or full commit id. Default: the remote's HEAD."
    )
    subpath: Annotated[str, Field(min_length=1, max_length=MAX_PATH_BYTES), *SUBPATH_RULES] | None = Field(
        None, description="Directory of the repository that becomes the entry, without its history."
    )
    credentials_secret_ref: ObjectRef | None = Field(
        None,
        description="Secret with keys username and password (or token), or ssh-privatekey and known_hosts. "
        "Seen by the init container only.",
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

    rules: ClassVar[tuple[Rule, ...]] = (
        exactly_one("file", "dir", "gitRepo", "localFile", "localDir"),
        Rule(
            "has(self.file) == has(oldSelf.file) && has(self.dir) == has(oldSelf.dir)"
            " && has(self.gitRepo) == has(oldSelf.gitRepo) && has(self.localFile) == has(oldSelf.localFile)"
            " && has(self.localDir) == has(oldSelf.localDir)",
            "the kind of an entry cannot change; remove the entry and use another path, or create another "
            "sandbox",
        ),
    )

    file: File | None = Field(None, description="A file with the given content.")
    dir: Dir | None = Field(None, description="An empty directory, written as {}.")
    git_repo: GitRepo | None = Field(None, description="A git repository.")
    local_file: LocalFile | None = Field(None, description="A file that the client sends, written as {}.")
    local_dir: LocalDir | None = Field(None, description="A directory that the client sends, written as {}.")
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

    rules: ClassVar[tuple[Rule, ...]] = (exactly_one("value", "valueFrom"),)

    name: Annotated[
        str,
        Field(min_length=1, max_length=256, pattern=r"^[A-Za-z_][A-Za-z0-9_.-]*$"),
        Rule(
            "!self.startsWith('SANDBOX_')",
            "names that begin with SANDBOX_ are reserved",
            lambda name: not name.startswith("SANDBOX_"),
        ),
    ] = Field(description="Name of the variable; not one that begins with SANDBOX_.")
    value: Annotated[str, Field(max_length=32768), no_zero_byte("a value")] | None = Field(
        None, description="Literal value. $(NAME) is not expanded."
    )
    value_from: ValueSource | None = Field(
        None, description="A key of a ConfigMap or Secret that holds the value."
    )


class PathGrant(ApiModel):
    """An absolute path of the container beyond the workspace that the file operations may use."""

    path: Annotated[str, Field(min_length=2, max_length=MAX_PATH_BYTES), *GRANT_RULES] = Field(
        description="Absolute path in the workspace container."
    )
    read_only: bool | None = Field(
        None, description="Refuse writes beneath it through the file operations. Default: false."
    )


class Manifest(ApiModel):
    """The contents of a fresh workspace."""

    root: Annotated[str, Field(min_length=1, max_length=255), *ROOT_RULES] | None = Field(
        None,
        description="Absolute path at which the workspace container sees the workspace. Cannot change. "
        "Default: /workspace.",
    )
    entries: (
        Annotated[
            dict[str, Entry],
            Field(max_length=MAX_ENTRIES),
            *ENTRY_PATH_RULES,
            Rule(
                "self.map(k, !has(self[k].file) ? 0 :"
                " (has(self[k].file.content) ? self[k].file.content.size() : 0)"
                " + (has(self[k].file.contentBase64) ? self[k].file.contentBase64.size() : 0)"
                f").sum() <= {MAX_INLINE_CHARACTERS}",
                f"content and contentBase64 of all entries together can have at most {MAX_INLINE_CHARACTERS} "
                "characters: put larger files into a ConfigMap or Secret and name it in contentFrom, clone "
                "them with gitRepo, or let the SDK client upload them (localFile, localDir)",
                lambda entries: _inline(entries) <= MAX_INLINE_CHARACTERS,
            ),
            Rule(
                _ENTRIES_SIZE_CEL,
                f"paths, descriptions, addresses and references of all entries together can have at most "
                f"{MAX_ENTRY_BYTES} bytes: shorten descriptions, or let one gitRepo or localDir bring many "
                "files",
                lambda entries: _entries_size(entries) <= MAX_ENTRY_BYTES,
            ),
        ]
        | None
    ) = Field(
        None,
        description="What stands in the workspace, by path relative to the root, such as docs/a.md: at "
        "most 512 bytes and 12 levels, and not beneath a file.",
    )
    environment: (
        Annotated[
            list[EnvVar],
            Field(max_length=256),
            list_map("name"),
            Rule(
                _ENVIRONMENT_SIZE_CEL,
                f"names, values and references of all variables together can have at most "
                f"{MAX_ENVIRONMENT_BYTES} bytes, with two more for each variable: put long values into a file",
                lambda variables: _environment_size(variables) <= MAX_ENVIRONMENT_BYTES,
            ),
        ]
        | None
    ) = Field(
        None,
        description="Environment of every command: names, values and references together have at most 131072 "
        "bytes.",
    )
    path_grants: Annotated[list[PathGrant], Field(max_length=32), list_map("path")] | None = Field(
        None, description="Paths beyond the workspace that the file operations may use."
    )
