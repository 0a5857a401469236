"""Git entries against a host inside the cluster: https with a private authority, with and without a password."""

import base64
import importlib.util
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dev.local.locations import REPOSITORY

from .conftest import SANDBOX, Namespace

TOKEN = "tok-SECRET/+=&123"  # as the host of tests/workspace asks for
OPERATOR = "app.kubernetes.io/name=sandbox-operator"
SOURCES = REPOSITORY / "tests" / "workspace"
MAIN = """
import os, pathlib, sys, time
sys.path.insert(0, "/code")
from git_server import serve
from repositories import git, make_ordinary
root = pathlib.Path("/srv/git")
made = make_ordinary(root / "public" / "repo.git")
make_ordinary(root / "private" / "repo.git")
large = root / "large" / "repo.git"
make_ordinary(large)
(large / "large.bin").write_bytes(os.urandom(12_000_000))
git(large, "add", ".")
git(large, "commit", "-q", "-m", "large")
with serve(root, certificate=pathlib.Path("/tls/host.crt"), host="0.0.0.0") as server:
    print("LISTENING", server.port, made.first, made.main, flush=True)
    time.sleep(3600)
"""


@dataclass
class Host:
    """The git host: how to reach it and what it serves."""

    url: str
    first: str
    main: str

    def entry(self, repository: str = "public", **more: Any) -> dict[str, Any]:
        return {
            "gitRepo": {
                "url": f"{self.url}/{repository}/repo.git",
                "caConfigMapRef": {"name": "git-ca"},
                **more,
            }
        }


def config_map(name: str, data: dict[str, str]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def load_source(name: str) -> Any:
    """A module of tests/workspace, which is no package."""
    spec = importlib.util.spec_from_file_location(name, SOURCES / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def host(namespace: Namespace, tmp_path: Path) -> Host:
    """A git host with a certificate of a private authority."""
    name = f"git.{namespace.name}.svc"
    authority, certificate = load_source("git_server").make_certificate(tmp_path, name)
    code = {file: (SOURCES / file).read_text() for file in ("git_server.py", "repositories.py")}
    labels = {"app": "git"}
    namespace.apply(
        config_map("git-ca", {"ca.crt": authority.read_text()}),
        config_map("code", {**code, "main.py": MAIN}),
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "tls"},
            "data": {
                file.name: base64.b64encode(file.read_bytes()).decode()
                for file in (certificate, certificate.with_suffix(".key"))
            },
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "git"},
            "spec": {"clusterIP": "None", "selector": labels, "ports": [{"port": 443}]},
        },
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "git", "labels": labels},
            "spec": {
                "terminationGracePeriodSeconds": 0,
                "containers": [
                    {
                        "name": "git",
                        "image": namespace.image,
                        "command": ["python3", "/code/main.py"],
                        "volumeMounts": [
                            {"name": "code", "mountPath": "/code"},
                            {"name": "tls", "mountPath": "/tls"},
                        ],
                    }
                ],
                "volumes": [
                    {"name": "code", "configMap": {"name": "code"}},
                    {"name": "tls", "secret": {"secretName": "tls"}},
                ],
            },
        },
    )  # fmt: skip
    said = namespace.until(
        lambda: next(
            (
                line
                for line in namespace.kubectl("logs", "git", check=False).splitlines()
                if line.startswith("LISTENING")
            ),
            None,
        ),
        "the git host to listen",
        60,
        lambda: namespace.kubectl("logs", "git", check=False),
    )
    _, port, first, main = said.split()
    return Host(f"https://{name}:{port}", first, main)


def test_branch_tag_commit_and_subpath_from_a_host_with_a_private_authority(
    namespace: Namespace, host: Host
) -> None:
    namespace.create(
        "repos",
        entries={
            "branch": host.entry(ref="feature/x"),
            "tag": host.entry(ref="v1"),
            "commit": host.entry(ref=host.first),
            "head": host.entry(),
            "part": host.entry(ref="main", subpath="docs"),
            "head/notes.md": {"file": {"content": "placed beneath a repository"}},
        },
        network={"egress": "Cluster"},
    )
    namespace.wait_ready("repos")
    assert namespace.sh("repos", "cat branch/README.md tag/README.md") == "feature\nfirst\n"
    commits = namespace.sh("repos", "for r in commit head; do git -C $r rev-parse HEAD; done").split()
    assert commits == [host.first, host.main]
    assert namespace.sh("repos", "git -C head rev-list --count HEAD").strip() == "1"
    assert namespace.sh("repos", "ls -A part").split() == ["a.md", "deep"]
    assert namespace.sh("repos", "cat head/notes.md") == "placed beneath a repository"
    assert namespace.sh("repos", "git -C head remote get-url origin").strip().startswith("https://git.")


def test_a_private_repository_by_a_secret_that_shows_nowhere(namespace: Namespace, host: Host) -> None:
    namespace.apply(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "git-token"},
            "stringData": {"token": TOKEN},
        }
    )
    namespace.create(
        "private",
        entries={"repo": host.entry("private", ref="main", credentialsSecretRef={"name": "git-token"})},
        network={"egress": "Cluster"},
    )
    namespace.wait_ready("private")
    pod = namespace.pod_name("private")
    places = {
        "workspace": namespace.sh("private", "cat repo/README.md repo/.git/config; env; grep -ra tok-SECRET . || :"),
        "logs": namespace.kubectl("logs", pod, "--all-containers"),
        "pod": namespace.kubectl("get", "pod", pod, "-o", "yaml"),
        "sandbox": namespace.kubectl("get", SANDBOX, "private", "-o", "yaml"),
        "events": namespace.kubectl("get", "events", "-o", "yaml"),
        "operator": namespace.kubectl("-n", "sandbox-system", "logs", "-l", OPERATOR),
    }  # fmt: skip
    encoded = base64.b64encode(TOKEN.encode()).decode()
    for place, text in places.items():
        assert "tok-SECRET" not in text, place
        assert encoded not in text, place
    assert namespace.sh("private", "ls /mnt 2>/dev/null | wc -l").strip() == "0"


@pytest.mark.parametrize(
    ("entry", "reason", "retryable"),
    [
        ({"ref": "no-such-branch"}, "GitRefNotFound", False),
        ({"subpath": "no/such/place"}, "GitSubpathNotFound", False),
        ({"repository": "private"}, "GitAuthenticationFailed", False),
        ({"url": "https://no-such-host.invalid/a/b.git"}, "GitHostUnreachable", True),
    ],
)
def test_a_repository_that_cannot_be_had_names_entry_reason_and_whether_to_retry(
    namespace: Namespace, host: Host, entry: dict[str, str], reason: str, retryable: bool
) -> None:
    wanted = host.entry(entry.pop("repository", "public"), **entry)
    namespace.create("bad", entries={"good": {"dir": {}}, "repo": wanted}, network={"egress": "Cluster"})
    failure = namespace.wait_failure("bad", reason)
    assert failure["entry"] == "repo"
    assert failure["retryable"] is retryable
    assert namespace.condition("bad", "Ready")["status"] == "False"
    if not retryable:
        assert namespace.condition("bad", "Stalled")["status"] == "True"
        namespace.until(lambda: len(namespace.objects("pods")) == 1, "the sandbox's pod to go")
        # A change of the spec is a new try.
        good = json.dumps({"spec": {"manifest": {"entries": {"repo": host.entry(ref="main")}}}})
        if reason == "GitRefNotFound":
            namespace.kubectl("patch", SANDBOX, "bad", "--type=merge", "-p", good)
            namespace.wait_ready("bad")


def test_ssh_runs_for_a_user_that_no_image_knows(namespace: Namespace, host: Host) -> None:
    """The host speaks no ssh, so this gets as far as that; without a name for its user ssh would not even connect."""
    key = "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END OPENSSH PRIVATE KEY-----\n"
    namespace.apply(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "key"},
            "stringData": {"ssh-privatekey": key, "known_hosts": "* ssh-ed25519 AAAA\n"},
        }
    )
    url = host.url.replace("https://", "ssh://git@")
    namespace.create(
        "odd-user",
        entries={"repo": {"gitRepo": {"url": f"{url}/a", "credentialsSecretRef": {"name": "key"}}}},
        network={"egress": "Cluster"},
        security={"runAsUser": 54321, "runAsGroup": 54321},
    )
    failure = namespace.wait_failure("odd-user", "GitFailed")
    assert "user name" not in failure["message"]
    assert failure["retryable"] is True


def test_a_repository_larger_than_the_volume_is_said_and_not_evicted_again_and_again(
    namespace: Namespace, host: Host
) -> None:
    namespace.create(
        "small",
        entries={"code": host.entry("large")},
        network={"egress": "Cluster"},
        workspace={"emptyDir": {"sizeLimit": "16Mi"}},
    )
    failure = namespace.wait_failure("small", "WorkspaceFull")
    assert failure["entry"] == "code"
    assert failure["retryable"] is False
    assert "16Mi" in failure["message"]
    assert "workspace.emptyDir.sizeLimit" in failure["message"]
    assert namespace.condition("small", "Stalled")["status"] == "True"
    namespace.until(lambda: len(namespace.objects("pods")) == 1, "the sandbox's pod to go")
    larger = json.dumps({"spec": {"workspace": {"emptyDir": {"sizeLimit": "64Mi"}}}})
    namespace.kubectl("patch", SANDBOX, "small", "--type=merge", "-p", larger)
    namespace.wait_ready("small")
    assert namespace.sh("small", "stat -c %s code/large.bin").strip() == "12000000"


def test_a_host_that_takes_the_connection_and_never_answers_is_bounded(namespace: Namespace) -> None:
    mute = (
        "import socket, time; s = socket.create_server(('', 9418)); print('up', flush=True); time.sleep(3600)"
    )
    namespace.apply(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "git", "labels": {"app": "git"}},
            "spec": {
                "terminationGracePeriodSeconds": 0,
                "containers": [{"name": "git", "image": namespace.image, "command": ["python3", "-c", mute]}],
            },
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "git"},
            "spec": {"clusterIP": "None", "selector": {"app": "git"}, "ports": [{"port": 9418}]},
        },
    )
    namespace.kubectl("wait", "--for=condition=Ready", "pod/git", "--timeout=60s")
    namespace.create(
        "patient",
        entries={"repo": {"gitRepo": {"url": f"https://git.{namespace.name}.svc:9418/a.git"}}},
        network={"egress": "Cluster"},
        lifecycle={"startTimeout": "15s"},
    )
    failure = namespace.wait_failure("patient", "StartTimeout", 60)
    assert "15" in failure["message"]
    namespace.until(lambda: len(namespace.objects("pods")) == 1, "the sandbox's pod to go")


def test_plain_git_is_refused_unless_the_administrator_lists_the_host(namespace: Namespace) -> None:
    namespace.create(
        "plain",
        entries={"repo": {"gitRepo": {"url": "git://git.example.com/a.git"}}},
        network={"egress": "Cluster"},
    )
    failure = namespace.wait_failure("plain", "NotAllowed")
    assert "git.example.com" in failure["message"]
    assert failure["retryable"] is False
