import pytest
from sandbox_workspace.git_url import parse_git_url
from sandbox_workspace.outcome import MaterializeError

ALLOWED = frozenset({"git.dev.svc:8080", "plain.dev", "[::1]:80"})


@pytest.mark.parametrize(
    ("text", "origin"),
    [
        ("https://github.com/org/name.git", "https://github.com:443"),
        ("https://Host.Example:8443/a/b", "https://host.example:8443"),
        ("https://[2001:db8::1]/a", "https://[2001:db8::1]:443"),
        ("ssh://git@github.com/org/name", "ssh://github.com:22"),
        ("ssh://host:2222/~me/name", "ssh://host:2222"),
        ("http://git.dev.svc:8080/a", "http://git.dev.svc:8080"),
        ("git://GIT.dev.svc:8080/a", "git://git.dev.svc:8080"),
        ("http://plain.dev/a", "http://plain.dev:80"),
        ("git://plain.dev/a", "git://plain.dev:9418"),
        ("http://[::1]/a", "http://[::1]:80"),
    ],
)
def test_allowed(text: str, origin: str) -> None:
    url = parse_git_url(text, ALLOWED)
    assert url.origin == origin
    assert url.text == text


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "/srv/repo.git",
            "./repo",
            "repo",
            "git@github.com:org/name.git",
            "-u./payload",
            "--upload-pack=x",
        ),
        *(
            "file:///srv/repo.git",
            "ext::sh -c touch% x",
            "fd::17",
            "HTTPS://host/a",
            "ftp://host/a",
            "svn://host/a",
        ),
        *("https://user@host/a", "https://user:token@host/a", "https://:token@host/a", "https://@host/a"),
        *("ssh://git:password@host/a", "ssh://-oProxyCommand=x@host/a", "ssh://-oProxyCommand=x/a"),
        *(
            "https://-host/a",
            "https:///a",
            "https://host",
            "https://host/",
            "https://host:0/a",
            "https://host:65536/a",
        ),
        *("https://ho st/a", "https://host/a b", "https://host/a\nb", "https://host/a\0", "https://host/a#b"),
        *(
            "https://host/a?token=x",
            "https://host\\@evil/a",
            "https://host:80:80/a",
            "http://host/a",
            "git://host/a",
        ),
        *(
            "http://git.dev.svc/a",
            "http://git.dev.svc:8081/a",
            "http://plain.dev:8080/a",
            "https://h/" + "a" * 3000,
        ),
        "https+ext://host/a",
    ],
)
def test_refused(text: str) -> None:
    with pytest.raises(MaterializeError) as caught:
        parse_git_url(text, ALLOWED)
    assert caught.value.reason == "GitRefused"
    assert not caught.value.retryable
    assert "token" not in caught.value.message
