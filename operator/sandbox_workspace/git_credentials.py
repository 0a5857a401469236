"""Credentials and authorities of one repository, from the mounted directories to git.

git learns names of files, never a secret: a password is read by a credential helper that git asks for one
origin only, a key by ssh. This process reads them too, to refuse what could not work and to keep them out
of messages.
"""

import base64
import os
import pwd
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from .git_settings import Settings
from .git_url import GitUrl
from .outcome import MaterializeError
from .reasons import Reason

#: What the large hosts take beside a token.
TOKEN_USER = "x-access-token"  # noqa: S105 - a user name
DEFAULT_SSH_USER = "git"
HIDDEN = "***"
_SYSTEM_AUTHORITIES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
)
#: Of Debian's libnss-wrapper: answers look-ups of users from a file that a variable names.
_NAMES_LIBRARY = "libnss_wrapper.so"
_SSH_OPTIONS = {
    "BatchMode": "yes",
    "StrictHostKeyChecking": "yes",
    "GlobalKnownHostsFile": "/dev/null",
    "UpdateHostKeys": "no",
    "IdentitiesOnly": "yes",
    "IdentityAgent": "none",
    "PreferredAuthentications": "publickey",
    "ConnectTimeout": "15",
    "ServerAliveInterval": "10",
    "ServerAliveCountMax": "3",
    "ControlPath": "none",
    "ProxyCommand": "none",
    "ClearAllForwardings": "yes",
    "PermitLocalCommand": "no",
}


@dataclass(frozen=True, slots=True)
class Access:
    """What git is told about the way into one host."""

    settings: Settings = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    secrets: frozenset[str] = field(default=frozenset(), repr=False)
    given: bool = False

    def scrub(self, text: str) -> str:
        """Text without anything secret."""
        for secret in sorted(self.secrets, key=len, reverse=True):
            text = text.replace(secret, HIDDEN)
        return text


def prepare_access(url: GitUrl, credentials: Path | None, ca: Path | None, private: Path) -> Access:
    """Look at the mounted Secret and ConfigMap; `private` is a directory for what needs another form.

    Raises:
        MaterializeError: SourceNotFound where something is not mounted yet, GitRefused where it cannot serve.
    """
    settings: Settings = []
    if ca is not None:
        settings.append(("http.sslCAInfo", str(_join_authorities(ca, private))))
    if credentials is None:
        if url.scheme == "ssh":
            raise _refused(
                "A repository by ssh needs credentialsSecretRef, with keys ssh-privatekey and known_hosts."
            )
        return Access(settings)
    keys = _keys(credentials)
    if not keys:
        # Only the keys that are of use are mounted: a Secret with others looks like none.
        raise MaterializeError(
            Reason.SOURCE_NOT_FOUND,
            "The Secret named by credentialsSecretRef is not there, or has none of the keys username and"
            " password, token, ssh-privatekey and known_hosts.",
            retryable=True,
        )
    if url.scheme == "ssh":
        return _ssh_access(url, credentials, keys, private)
    if url.scheme == "git":
        raise _refused("git:// knows no credentials; use https or ssh, or leave credentialsSecretRef out.")
    access = _password_access(url, credentials, keys)
    return Access([*settings, *access.settings], access.env, access.secrets, given=True)


def _password_access(url: GitUrl, directory: Path, keys: frozenset[str]) -> Access:
    key = next((name for name in ("password", "token") if name in keys), None)
    if key is None:
        raise _refused("The Secret of credentialsSecretRef has neither the key password nor token.")
    password = _single_line(directory / key)
    user = _single_line(directory / "username") if "username" in keys else TOKEN_USER
    user_command = f"cat {shlex.quote(str(directory / 'username'))}" if "username" in keys else f"echo {user}"
    helper = (
        '!f() { test "$1" = get || exit 0;'
        f" printf 'username=%s\\n' \"$({user_command})\";"
        f" printf 'password=%s\\n' \"$(cat {shlex.quote(str(directory / key))})\"; }}; f"
    )
    scope = f"credential.{url.origin}"
    basic = base64.b64encode(f"{user}:{password}".encode()).decode()
    return Access([(f"{scope}.helper", ""), (f"{scope}.helper", helper)], {}, _forms(password) | {basic})


def _ssh_access(url: GitUrl, directory: Path, keys: frozenset[str], private: Path) -> Access:
    if "ssh-privatekey" not in keys:
        raise _refused(
            "The Secret of credentialsSecretRef has no key ssh-privatekey, which a URL of ssh:// needs."
        )
    if "known_hosts" not in keys:
        keyscan = f"ssh-keyscan -p {url.port} {url.address}"
        raise _refused(
            "The Secret of credentialsSecretRef has no key known_hosts, so that the host could not be told"
            f" from another; add the line that `{keyscan}` prints, once you have checked it."
        )
    text = _read(directory / "ssh-privatekey").replace("\r\n", "\n")
    identity = private / "identity"
    _write_private(identity, text if text.endswith("\n") else text + "\n")
    options = _SSH_OPTIONS | {
        "UserKnownHostsFile": str(directory / "known_hosts"),
        "IdentityFile": str(identity),
    }
    if url.user is None:
        user = _single_line(directory / "username") if "username" in keys else DEFAULT_SSH_USER
        options["User"] = user
    arguments = [*_name_for_user(private), "ssh", "-F", "/dev/null"]
    for name, value in options.items():
        arguments += ["-o", f"{name}={value}"]
    env = {"GIT_SSH_COMMAND": shlex.join(arguments), "GIT_SSH_VARIANT": "ssh"}
    secrets = frozenset(line for line in text.splitlines() if len(line) > 16 and "-----" not in line)
    return Access([], env, secrets, given=True)


def _name_for_user(private: Path) -> list[str]:
    """What goes before ssh where the pod's user has no name: ssh runs for nobody without one.

    Where the image has no such library, the loader says so and ssh refuses as before.
    """
    user = os.geteuid()
    try:
        pwd.getpwuid(user)
    except KeyError:
        names = private / "passwd"
        names.write_text(f"sandbox:x:{user}:{os.getegid()}::{private}:/usr/sbin/nologin\n")
        return [
            "env",
            f"LD_PRELOAD={_NAMES_LIBRARY}",
            f"NSS_WRAPPER_PASSWD={names}",
            "NSS_WRAPPER_GROUP=/etc/group",
        ]
    return []


def _join_authorities(ca: Path, private: Path) -> Path:
    """The system's authorities and the user's: git takes one file, which replaces its own."""
    try:
        own = ca.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise MaterializeError(
            Reason.SOURCE_NOT_FOUND,
            "The ConfigMap or the key named by caConfigMapRef is not there.",
            retryable=True,
        ) from None
    if b"-----BEGIN CERTIFICATE-----" not in own:
        raise _refused("The key named by caConfigMapRef holds no PEM certificate.")
    configured = filter(None, (os.environ.get("GIT_SSL_CAINFO"), os.environ.get("SSL_CERT_FILE")))
    system = next((path for path in map(Path, (*configured, *_SYSTEM_AUTHORITIES)) if path.is_file()), None)
    joined = private / "authorities.pem"
    joined.write_bytes((system.read_bytes() + b"\n" if system else b"") + own + b"\n")
    return joined


def _keys(directory: Path) -> frozenset[str]:
    try:
        return frozenset(path.name for path in directory.iterdir() if path.is_file())
    except (FileNotFoundError, NotADirectoryError):
        return frozenset()


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except UnicodeDecodeError:
        raise _refused(f"The key {path.name} of the Secret of credentialsSecretRef is not text.") from None


def _single_line(path: Path) -> str:
    """A value as the helper's `$(cat …)` gives it; more lines would speak to git in the helper's name."""
    value = _read(path).rstrip("\n")
    if not value or not value.isprintable():
        raise _refused(f"The key {path.name} of the Secret of credentialsSecretRef is not one line of text.")
    return value


def _forms(secret: str) -> frozenset[str]:
    return frozenset({secret, quote(secret, safe=""), quote(secret)})


def _write_private(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as stream:
        stream.write(text)


def _refused(message: str) -> MaterializeError:
    return MaterializeError(Reason.GIT_REFUSED, message)
