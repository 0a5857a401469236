"""How git is started: an environment made from nothing, and settings that a repository cannot change.

Settings travel in GIT_CONFIG_* variables: they are stronger than any file, and nothing of them stays in the
repository's own configuration.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from .git_url import GitUrl

Settings = list[tuple[str, str]]

#: What of the container's own environment git may see: the way out, and the system's certificates.
_PASSED_ON = (
    "http_proxy",
    "https_proxy",
    "HTTPS_PROXY",
    "all_proxy",
    "ALL_PROXY",
    "no_proxy",
    "NO_PROXY",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "GIT_SSL_CAINFO",
)
_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_NO_CODE: Settings = [
    ("core.hooksPath", "/dev/null"),
    ("core.fsmonitor", "false"),
    ("core.alternateRefsCommand", "true"),
    ("core.attributesFile", "/dev/null"),
    ("core.excludesFile", "/dev/null"),
    ("core.askPass", ""),
    ("init.templateDir", ""),
    ("safe.bareRepository", "explicit"),
    ("submodule.recurse", "false"),
    ("fetch.recurseSubmodules", "false"),
    ("filter.lfs.smudge", ""),
    ("filter.lfs.process", ""),
    ("filter.lfs.required", "false"),
    ("credential.helper", ""),
]
_CHECKS: Settings = [
    ("transfer.fsckObjects", "true"),
    ("fetch.fsckObjects", "true"),
    ("core.protectHFS", "true"),
    ("core.protectNTFS", "true"),
    ("http.followRedirects", "false"),
    ("protocol.allow", "never"),
]
#: Old slips of the pen in well-known repositories, that no program trips over.
_HARMLESS = (
    "zeroPaddedFilemode",
    "badTimezone",
    "badDate",
    "badDateOverflow",
    "zeroPaddedDate",
    "badEmail",
    "missingEmail",
    "missingNameBeforeEmail",
    "missingSpaceBeforeDate",
    "missingSpaceBeforeEmail",
    "multipleAuthors",
)
_QUIET: Settings = [
    ("init.defaultBranch", "main"),
    ("advice.detachedHead", "false"),
    ("gc.auto", "0"),
    ("maintenance.auto", "false"),
    ("core.fsync", "none"),  # as the other entries: a start that a crash interrupts is done anew
]
#: Nothing at all for so long is a host that hangs; a server that packs says a byte a second.
_STALL_SECONDS = 30


def base_settings(url: GitUrl, timeout_seconds: int) -> Settings:
    """Settings for every repository."""
    return [
        *_NO_CODE,
        *_CHECKS,
        *((f"fetch.fsck.{problem}", "ignore") for problem in _HARMLESS),
        *_QUIET,
        (f"protocol.{url.scheme}.allow", "always"),
        ("http.lowSpeedLimit", "1"),
        ("http.lowSpeedTime", str(min(_STALL_SECONDS, timeout_seconds))),
    ]


def environment(url: GitUrl, settings: Settings, home: Path, extra: Mapping[str, str]) -> dict[str, str]:
    """The whole environment of a git process. No secret is in it, only names of files."""
    env = {
        "PATH": os.environ.get("PATH", _DEFAULT_PATH),
        "HOME": str(home),
        "LC_ALL": "C",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ALLOW_PROTOCOL": url.scheme,
        "GIT_PROTOCOL_FROM_USER": "0",
        "GIT_LFS_SKIP_SMUDGE": "1",
        "GIT_LITERAL_PATHSPECS": "1",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_CONFIG_COUNT": str(len(settings)),
    }
    env |= {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    for number, (key, value) in enumerate(settings):
        env[f"GIT_CONFIG_KEY_{number}"] = key
        env[f"GIT_CONFIG_VALUE_{number}"] = value
    return env | dict(extra)


def goes_through_proxy(url: GitUrl) -> bool:
    """Whether git may not connect to the host itself."""
    names: Iterable[str] = {
        "https": ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"),
        "http": ("http_proxy", "all_proxy", "ALL_PROXY"),
    }.get(url.scheme, ())
    return any(os.environ.get(name) for name in names)
