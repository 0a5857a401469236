"""What the schema and its CEL rules cannot say: the administrator's allow-lists, and what depends on defaults. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from pydantic import ValidationError
from sandbox_api.v1alpha1 import MAX_AFFINITY_BYTES, Egress, GitRepo, Reason, SandboxSpec

from sandbox_operator.settings import Settings

from .diagnose import Problem
from .materialize_plan import git_url
from .text import listed, one_line
from .trim import OVERSIZE

_INSECURE_PORTS = {"http": 80, "git": 9418}


def parse_spec(raw: Mapping[str, Any]) -> tuple[SandboxSpec | None, Problem | None]:
    """The spec, or why it cannot be taken: for example a field that only a newer operator knows."""
    if (raw.get("pod") or {}).get("affinity") == OVERSIZE:
        message = (
            f"spec.pod.affinity: it has more than {MAX_AFFINITY_BYTES} bytes as JSON; select by fewer terms."
        )
        return None, Problem(Reason.INVALID_SPEC, message, False)
    try:
        return SandboxSpec.model_validate(raw), None
    except ValidationError as error:
        said = [
            f"spec.{'.'.join(str(part) for part in item['loc'])}: {item['msg']}"
            for item in error.errors(include_url=False, include_input=False, include_context=False)
        ]
        return None, Problem(Reason.INVALID_SPEC, one_line(listed(said, 3)), False)


def check_spec(spec: SandboxSpec, settings: Settings) -> Problem | None:
    """The first thing that is not allowed here, if there is one."""
    return next(_problems(spec, settings), None)


def _problems(spec: SandboxSpec, settings: Settings) -> Iterator[Problem]:
    runtime = spec.security and spec.security.runtime_class_name
    if runtime and runtime not in settings.allowed_runtime_classes:
        yield _not_allowed(f"runtime class {runtime!r}", settings.allowed_runtime_classes)
    priority = spec.pod and spec.pod.priority_class_name
    if priority and priority not in settings.allowed_priority_classes:
        yield _not_allowed(f"priority class {priority!r}", settings.allowed_priority_classes)
    egress = (spec.network and spec.network.egress) or settings.default_egress
    for path, entry in ((spec.manifest and spec.manifest.entries) or {}).items():
        if entry.git_repo is None:
            continue
        if egress is Egress.NONE:
            yield Problem(
                Reason.NOT_ALLOWED,
                "A git repository cannot be cloned with network.egress None: use Cluster or Internet, or let the "
                "client upload the directory (localDir).",
                False,
                path,
            )
        elif not _git_allowed(entry.git_repo, settings):
            yield Problem(
                Reason.NOT_ALLOWED,
                f"{scheme_and_host(entry.git_repo)} is not encrypted and the administrator has not allowed that "
                "for this host: use https or ssh.",
                False,
                path,
            )


def scheme_and_host(repo: GitRepo) -> str:
    """The part of a repository's URL that can be shown: no user and no password that a client may have slipped in."""
    url = urlsplit(git_url(repo))
    return f"{url.scheme}://{url.netloc.rpartition('@')[2]}"


def _git_allowed(repo: GitRepo, settings: Settings) -> bool:
    url = urlsplit(git_url(repo))
    default = _INSECURE_PORTS.get(url.scheme)
    if default is None:
        return True
    try:
        port = url.port or default
    except ValueError:
        return False
    host = (url.hostname or "").lower()
    allowed = {f"{host}:{port}"} | ({host} if port == default else set())
    return any(name.lower() in allowed for name in settings.insecure_git_hosts)


def _not_allowed(what: str, allowed: tuple[str, ...]) -> Problem:
    choice = f"allowed are {listed(list(allowed))}" if allowed else "none is allowed"
    return Problem(Reason.NOT_ALLOWED, f"The administrator has not allowed {what}; {choice}.", False)
