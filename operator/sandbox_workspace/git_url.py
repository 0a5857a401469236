"""URLs of repositories, parsed by one strict expression that git cannot read differently."""

import re
from dataclasses import dataclass

from .outcome import MaterializeError
from .reasons import Reason

_URL = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]*)://"
    r"(?:(?P<user>[^@/]*)@)?"
    r"(?P<host>[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])"
    r"(?::(?P<port>[0-9]{1,5}))?"
    r"(?P<path>/[^\s#?\\]+)"
)
_SSH_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_DEFAULT_PORTS = {"https": 443, "ssh": 22, "http": 80, "git": 9418}
_SAFE_SCHEMES = ("https", "ssh")
_MAX_URL = 2048


@dataclass(frozen=True, slots=True)
class GitUrl:
    """A repository's address that may be used."""

    text: str
    scheme: str
    user: str | None
    host: str
    port: int

    @property
    def origin(self) -> str:
        """Scheme, host and port as git compares them to choose a credential helper."""
        return f"{self.scheme}://{self.host}:{self.port}"

    @property
    def address(self) -> str:
        """The host as the resolver takes it."""
        return self.host.strip("[]")


def parse_git_url(text: str, insecure_hosts: frozenset[str]) -> GitUrl:
    """Check a URL: https and ssh, and http and git for the hosts that the administrator allows."""
    match = _URL.fullmatch(text) if len(text) <= _MAX_URL and text.isprintable() else None
    if match is None:
        raise _refused(
            "The URL of a repository has the form https://host/path or ssh://host/path,"
            " without query or fragment."
        )
    scheme, user, host = match["scheme"], match["user"], match["host"]
    port = int(match["port"]) if match["port"] else _DEFAULT_PORTS.get(scheme, 0)
    if scheme not in _DEFAULT_PORTS:
        raise _refused(f"A repository cannot be reached by {scheme}://; use https or ssh.")
    if not 0 < port < 65536:
        raise _refused("The port of the repository's URL is out of range.")
    if user is not None and (scheme != "ssh" or not _SSH_USER.fullmatch(user)):
        raise _refused(
            "The repository's URL holds user information; name a Secret in credentialsSecretRef instead."
        )
    url = GitUrl(text, scheme, user, host.lower(), port)
    if scheme not in _SAFE_SCHEMES and not _listed(url, insecure_hosts):
        raise _refused(
            f"{scheme}:// is neither encrypted nor authenticated, and the administrator has not allowed it"
            f" for {url.host}:{url.port}; use https or ssh."
        )
    return url


def _listed(url: GitUrl, insecure_hosts: frozenset[str]) -> bool:
    names = {f"{url.host}:{url.port}"}
    if url.port == _DEFAULT_PORTS[url.scheme]:
        names.add(url.host)
    return any(listed.lower() in names for listed in insecure_hosts)


def _refused(message: str) -> MaterializeError:
    return MaterializeError(Reason.GIT_REFUSED, message)
