"""Specs that the API must take, and specs that it must refuse with the name of the field and what to do."""

from typing import Any

from sandbox_api.v1alpha1 import MAX_ENTRY_BYTES, MAX_ENVIRONMENT_BYTES, MAX_INLINE_CHARACTERS

Spec = dict[str, Any]


def entries(**by_path: Any) -> Spec:
    return {"manifest": {"entries": by_path}}


def entry(path: str, **members: Any) -> Spec:
    return {"manifest": {"entries": {path: members or {"dir": {}}}}}


def git(**fields: Any) -> Spec:
    return entry("repo", gitRepo=fields)


def environment(**fields: Any) -> Spec:
    return {"manifest": {"environment": [fields]}}


GITHUB = {"host": "github.com", "repo": "owner/name"}
KEY = {"name": "object", "key": "key"}
#: With the two bytes that the kernel adds to each of four variables.
ALL_OF_THE_ENVIRONMENT = [{"name": name, "value": "x" * (MAX_ENVIRONMENT_BYTES // 4 - 3)} for name in "ABCD"]


def annotations(**of_pod: str) -> Spec:
    return {"pod": {"annotations": of_pod}}


RIGHT: dict[str, Spec] = {
    "nothing": {},
    "empty manifest": {"manifest": {}},
    "empty structures": {
        "manifest": {"entries": {}},
        "resources": {},
        "security": {},
        "pod": {},
        "network": {},
    },
    # names
    "spaces": entry("a file with  spaces .md"),
    "quotes": entry('it\'s "quoted" `here` $(now) \\n'),
    "newlines": entry("two\nlines\r\n\tof"),
    "control characters": entry("bell\x07escape\x1b[31m"),
    "unicode": entry("дом/日本語/🐍/é/e\u0301"),
    "right-to-left": entry("\u202eevil.md"),
    "leading dash": entry("-rf"),
    "dots in names": entry("..a/.b/c../...d"),
    "hidden": entry(".github/workflows"),
    "glob": entry("*?[a]{b}~"),
    "trailing space and dot": entry("a /b. "),
    "backslash": entry("a\\..\\b"),
    "brackets": entry("a[0].b"),
    "the longest": entry("/".join(["s" * 41] * 11 + ["s" * 50])),
    "the longest segment": entry("s" * 255),
    "twelve levels": entry("a/b/c/d/e/f/g/h/i/j/k/l"),
    "multibyte, just short enough": entry("é" * 127),
    # what may lie beneath what
    "beneath a directory": entries(**{"a": {"dir": {}}, "a/b": {"file": {"content": ""}}}),
    "beneath a repository": entries(**{"a": {"gitRepo": GITHUB}, "a/b": {"file": {"content": ""}}}),
    "beneath an uploaded directory": entries(**{"a": {"localDir": {}}, "a/b/c": {"localFile": {}}}),
    "beneath nothing declared": entry("a/b/c", file={"content": "x"}),
    "beside a file whose name it continues": entries(
        **{"a": {"file": {"content": ""}}, "ab/c": {"dir": {}}, "a.d/e": {"dir": {}}}
    ),
    # files
    "empty file": entry("a", file={"content": ""}),
    "all of the content": entry("a", file={"content": "x" * MAX_INLINE_CHARACTERS}),
    "all of the content, in wide characters": entry("a", file={"content": "🐍" * MAX_INLINE_CHARACTERS}),
    "base64": entry("a", file={"contentBase64": "AP8="}),
    "base64 in lines": entry("a", file={"contentBase64": "AP8A\r\n/wD/\nAA==\n"}),
    "from a ConfigMap": entry("a", file={"contentFrom": {"configMapKeyRef": KEY}}),
    "from a Secret": entry("a", file={"contentFrom": {"secretKeyRef": KEY}}),
    "permissions": entry("a", dir={}, permissions="rwxr-x---", ephemeral=True, description="notes"),
    # git
    "by host": git(**GITHUB),
    "by host and port": git(host="git.example.com:8443", repo="deep/er/name.git"),
    "by https": git(url="https://github.com/owner/name.git"),
    "by ssh": git(url="ssh://git@example.com:2222/~owner/name"),
    "by http": git(url="http://git.dev.svc:8080/a"),
    "by git": git(url="git://[fd00::1]:9418/a"),
    "all of a repository": git(
        **GITHUB,
        ref="release/v1.0",
        subpath="docs/a b",
        credentialsSecretRef={"name": "git"},
        caConfigMapRef={"name": "ca"},
    ),
    "a commit": git(**GITHUB, ref="0123456789012345678901234567890123456789"),
    "a deep subpath": git(**GITHUB, subpath="a/b/c/d/e/f/g/h/i/j/k/l"),
    "hidden key": entry("a", file={"contentFrom": {"configMapKeyRef": {"name": "a.b-c.1", "key": ".a..b"}}}),
    "all of the paths and descriptions": entries(
        **{f"{i:03}": {"dir": {}, "description": "d" * 1021} for i in range(MAX_ENTRY_BYTES // 1024)}
    ),
    "git with egress": {**git(**GITHUB), "network": {"egress": "Cluster"}},
    "no git without egress": {**entry("a"), "network": {"egress": "None"}},
    # environment, root, grants
    "value": environment(name="A", value=""),
    "valueFrom": environment(name="http_proxy", valueFrom={"secretKeyRef": KEY}),
    "all of the environment": {"manifest": {"environment": ALL_OF_THE_ENVIRONMENT}},
    "all of the environment, in wide characters": environment(name="AB", value="🐍" * 32767),
    "home": environment(name="HOME", value="/root"),
    "root": {"manifest": {"root": "/work/räum e"}},
    "root in tmp": {"manifest": {"root": "/tmp"}},
    "root beside what is reserved": {"manifest": {"root": "/.sandbox2"}},
    "grants": {"manifest": {"pathGrants": [{"path": "/opt/tools", "readOnly": True}, {"path": "/tmp"}]}},
    # the rest
    "command": {"command": ["python", "-m", "http.server"], "args": ["80"], "ports": [80, 8080]},
    "quantities": {
        "resources": {
            "requests": {"cpu": 1, "memory": "1Gi"},
            "limits": {"cpu": "1000m", "memory": "1.5Gi", "nvidia.com/gpu": 1},
        },
        "workspace": {"emptyDir": {"sizeLimit": "10Gi"}},
    },
    "lifecycle": {"lifecycle": {"ttl": "24h", "startTimeout": "1h30m", "stopGrace": "0s"}},
    "the longest grace": {"lifecycle": {"stopGrace": "59m60s"}},
    "the smallest volume": {"workspace": {"emptyDir": {"sizeLimit": 1048576}}},
    "the largest volume": {"workspace": {"emptyDir": {"sizeLimit": "64Ti"}}},
    "a long script": {"command": ["c" * 4096] * 4, "args": ["a" * 4096] * 4},
    "harmless annotations": annotations(
        **{
            "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
            "kubernetes.io/egress-bandwidth": "10M",
            "example.com/kubernetes.io": "a",
            "mykubernetes.io/a": "a",
            "notcilium.io/a": "a",
        }
    ),
    "all of the annotations": annotations(**{f"{i}": "x" * 4095 for i in range(4)}),
    "security": {"security": {"runAsUser": 1, "runAsGroup": 2, "fsGroup": 3, "runtimeClassName": "gvisor"}},
    "placement": {
        "pod": {
            "nodeSelector": {"kubernetes.io/arch": "amd64"},
            "tolerations": [{"operator": "Exists"}, {"key": "a", "value": "b", "tolerationSeconds": 0}],
            "affinity": {"podAntiAffinity": {"anything": [{"goes": 1}]}},
            "labels": {"team": "a", "example.com/team": ""},
            "annotations": {"note": "any text: \n {}"},
            "imagePullSecrets": [{"name": "registry"}],
            "priorityClassName": "low",
        }
    },
    "desired state": {
        "desiredState": "Running",
        "image": "registry.example:5000/a/b@sha256:0",
        "imagePullPolicy": "Never",
    },
}

#: Spec, and what the answer must hold.
WRONG: dict[str, tuple[Spec, str]] = {
    # paths of entries
    "parent": (
        entry("../a"),
        "a path of an entry is relative to the workspace, without empty, . or .. segments and zero bytes: "
        '"../a"',
    ),
    "parent inside": (entry("a/../b"), "a path of an entry is relative"),
    "only dots": (entry(".."), "a path of an entry is relative"),
    "only a dot": (entry("."), "a path of an entry is relative"),
    "dot segment": (entry("a/./b"), "a path of an entry is relative"),
    "dot at the end": (entry("a/."), "a path of an entry is relative"),
    "absolute": (entry("/etc/passwd"), "a path of an entry is relative"),
    "slash at the end": (entry("a/"), "a path of an entry is relative"),
    "empty segment": (entry("a//b"), "a path of an entry is relative"),
    "empty": (entry(""), "a path of an entry is relative"),
    "zero byte": (entry("a\0b"), "a path of an entry is relative"),
    "escape behind a newline": (entry("a\n/../../b"), "a path of an entry is relative"),
    "too deep": (
        entry("a/b/c/d/e/f/g/h/i/j/k/l/m"),
        "a path of an entry has at most 512 bytes and 12 levels",
    ),
    "too long": (entry("/".join(["s" * 100] * 6)), "a path of an entry has at most 512 bytes"),
    "too long in bytes": (entry("/".join(["é" * 99] * 3)), "a path of an entry has at most 512 bytes"),
    "segment too long": (entry("s" * 256), "levels of at most 255 bytes each"),
    "segment too long in bytes": (entry("é" * 128), "levels of at most 255 bytes each"),
    "too many": (
        entries(**{str(i): {"dir": {}} for i in range(513)}),
        "spec.manifest.entries: Too many: 513",
    ),
    "beneath a file": (
        entries(**{"a": {"file": {"content": ""}}, "a/b": {"dir": {}}}),
        'an entry cannot lie beneath one that is a file: "a/b"',
    ),
    "beneath an uploaded file": (
        entries(**{"a/b": {"localFile": {}}, "a/b/c": {"dir": {}}}),
        'an entry cannot lie beneath one that is a file: "a/b/c"',
    ),
    **{
        f"beneath a file at level {level}": (
            entries(
                **{
                    "/".join("abcdefghijkl"[:level]): {"localFile": {}},
                    "a/b/c/d/e/f/g/h/i/j/k/l": {"dir": {}},
                }
            ),
            "an entry cannot lie beneath one that is a file",
        )
        for level in range(1, 12)
    },
    "beneath a file, with a directory between": (
        entries(**{"a": {"file": {"content": ""}}, "a/b": {"dir": {}}, "a/b/c": {"dir": {}}}),
        "an entry cannot lie beneath one that is a file",
    ),
    "beneath a file with an odd name": (
        entries(**{"日本\n'x": {"file": {"content": ""}}, "日本\n'x/b": {"dir": {}}}),
        "an entry cannot lie beneath one that is a file",
    ),
    # kinds
    "no kind": (entry("a", description="x"), "spec.manifest.entries[a]: Invalid value"),
    "no kind, in words": (
        entry("a", description="x"),
        "set exactly one of file, dir, gitRepo, localFile and localDir",
    ),
    "two kinds": (entry("a", dir={}, file={"content": ""}), "set exactly one of file, dir, gitRepo"),
    "no content": (entry("a", file={}), "set exactly one of content, contentBase64 and contentFrom"),
    "two contents": (entry("a", file={"content": "", "contentBase64": ""}), "set exactly one of content"),
    "no source": (
        entry("a", file={"contentFrom": {}}),
        "set exactly one of configMapKeyRef and secretKeyRef",
    ),
    "two sources": (
        entry("a", file={"contentFrom": {"configMapKeyRef": KEY, "secretKeyRef": KEY}}),
        "set exactly one of configMapKeyRef and secretKeyRef",
    ),
    "no key": (
        entry("a", file={"contentFrom": {"secretKeyRef": {"name": "a"}}}),
        "secretKeyRef.key: Required value",
    ),
    "key with a slash": (
        entry("a", file={"contentFrom": {"secretKeyRef": {"name": "a", "key": "../b"}}}),
        "secretKeyRef.key: Invalid value",
    ),
    "permissions in octal": (
        entry("a", dir={}, permissions="0755"),
        "spec.manifest.entries.a.permissions: Invalid value",
    ),
    "content is a number": (
        entry("a", file={"content": 1}),
        "spec.manifest.entries.a.file.content: Invalid value",
    ),
    # size
    "too much content": (
        entry("big.txt", file={"content": "x" * 200_000}),
        "put larger files into a ConfigMap or Secret and name it in contentFrom, clone them with gitRepo, or "
        "let the SDK client upload them",
    ),
    "too much content in sum": (
        entries(a={"file": {"content": "x" * 70_000}}, b={"file": {"contentBase64": "AAAA" * 16_000}}),
        "can have at most 131072 characters",
    ),
    "no base64": (
        entry("a", file={"contentBase64": "data:,x"}),
        "spec.manifest.entries.a.file.contentBase64",
    ),
    "too many words": (
        entries(**{f"{i}": {"dir": {}, "description": "d" * 1024} for i in range(64)}),
        "spec.manifest.entries: Invalid value",
    ),
    "too many words, in words": (
        entries(**{f"{i}": {"dir": {}, "description": "d" * 1024} for i in range(64)}),
        "paths, descriptions, addresses and references of all entries together can have at most 65536 bytes",
    ),
    "too many words, in wide characters": (
        entries(**{f"{i}": {"dir": {}, "description": "🐍" * 1024} for i in range(16)}),
        "paths, descriptions, addresses and references of all entries together",
    ),
    "too many paths": (
        entries(**{"/".join([f"{i:03}", "s" * 125]): {"localDir": {}} for i in range(512)}),
        "paths, descriptions, addresses and references of all entries together",
    ),
    "too many addresses": (
        entries(
            **{
                f"{i}": {
                    "gitRepo": {"url": "https://h/" + "p" * 1000, "credentialsSecretRef": {"name": "n" * 20}}
                }
                for i in range(64)
            }
        ),
        "paths, descriptions, addresses and references of all entries together",
    ),
    "too many references": (
        entries(
            **{
                f"{i}": {"file": {"contentFrom": {"secretKeyRef": {"name": "n" * 60, "key": "k" * 70}}}}
                for i in range(512)
            }
        ),
        "paths, descriptions, addresses and references of all entries together",
    ),
    # git
    "url and host": (git(url="https://a/b", **GITHUB), "set either url, or host and repo together"),
    "host alone": (git(host="github.com"), "set either url, or host and repo together"),
    "repo alone": (git(repo="a/b"), "set either url, or host and repo together"),
    "no repository": (git(), "set either url, or host and repo together"),
    "ext": (git(url="ext::sh -c id"), "spec.manifest.entries[repo].gitRepo.url"),
    "ext, in words": (git(url="ext::sh -c id"), "the url begins with https:// or ssh://"),
    "file": (git(url="file:///etc"), "the url begins with https:// or ssh://"),
    "path": (git(url="/srv/git"), "the url begins with https:// or ssh://"),
    "scp": (git(url="git@github.com:owner/name"), "the url begins with https:// or ssh://"),
    "option": (git(url="--upload-pack=id"), "the url begins with https:// or ssh://"),
    "capitals": (git(url="HTTPS://github.com/a"), "the url begins with https:// or ssh://"),
    "password": (
        git(url="https://user:pass@example.com/a"),
        "put them into a Secret and name it in credentialsSecretRef",
    ),
    "token": (git(url="https://token@example.com/a"), "the url holds no credentials"),
    "password for ssh": (git(url="ssh://git:pass@example.com/a"), "the url holds no credentials"),
    "option as host": (git(url="ssh://-oProxyCommand=id/a"), "the url has a host and a path"),
    "option as user": (git(url="ssh://-oProxyCommand=id@example.com/a"), "the url has a host and a path"),
    "no path": (git(url="https://github.com/"), "the url has a host and a path"),
    "no host": (git(url="https:///a"), "the url has a host and a path"),
    "space in url": (git(url="https://github.com/a b"), "without query, fragment and spaces"),
    "newline in url": (git(url="https://github.com/a\nb"), "without query, fragment and spaces"),
    "newline after url": (git(url="https://github.com/a\n"), "without query, fragment and spaces"),
    "query": (git(url="https://github.com/a?b"), "without query, fragment and spaces"),
    "host with a path": (git(host="github.com/x", repo="a/b"), "gitRepo.host"),
    "host with a user": (git(host="me@github.com", repo="a/b"), "a host is a name or address"),
    "host that is an option": (git(host="-x", repo="a/b"), "a host is a name or address"),
    "repo that is an option": (git(host="github.com", repo="-x"), "a repository is its path on the host"),
    "repo from the root": (git(host="github.com", repo="/x"), "a repository is its path on the host"),
    "ref that is an option": (
        git(**GITHUB, ref="--upload-pack=id"),
        "a ref is a branch, a tag or a full commit id",
    ),
    "ref with a range": (git(**GITHUB, ref="a..b"), "a ref is a branch"),
    "ref with a space": (git(**GITHUB, ref="a b"), "a ref is a branch"),
    "refspec": (git(**GITHUB, ref="a:b"), "a ref is a branch"),
    "reflog": (git(**GITHUB, ref="a@{1}"), "a ref is a branch"),
    "ref with a newline": (git(**GITHUB, ref="a\n"), "a ref is a branch"),
    "ref that ends in .lock": (git(**GITHUB, ref="a.lock"), "a ref is a branch"),
    "subpath that escapes": (git(**GITHUB, subpath="../x"), "a subpath is relative to the repository"),
    "subpath that is too deep": (git(**GITHUB, subpath="a/b/c/d/e/f/g/h/i/j/k/l/m"), "a subpath has at most"),
    "subpath that is too long in bytes": (git(**GITHUB, subpath="é" * 257), "a subpath has at most"),
    "Secret that cannot be": (
        git(**GITHUB, credentialsSecretRef={"name": "My_Secret"}),
        "spec.manifest.entries.repo.gitRepo.credentialsSecretRef.name: Invalid value",
    ),
    "ConfigMap that cannot be": (
        git(**GITHUB, caConfigMapRef={"name": "a..b"}),
        "spec.manifest.entries.repo.gitRepo.caConfigMapRef.name: Invalid value",
    ),
    "key of the kubelet's own": (
        entry("a", file={"contentFrom": {"secretKeyRef": {"name": "a", "key": "..data"}}}),
        "secretKeyRef.key: Invalid value",
    ),
    "subpath of git itself": (git(**GITHUB, subpath="x/.GIT/hooks"), "a subpath cannot lie in .git"),
    "git without egress": (
        {**git(**GITHUB), "network": {"egress": "None"}},
        "spec.network.egress: Invalid value",
    ),
    "git without egress, in words": (
        {**git(**GITHUB), "network": {"egress": "None"}},
        "a gitRepo entry cannot be cloned with egress None: choose Cluster or Internet",
    ),
    # environment
    "no value": (environment(name="A"), "spec.manifest.environment[0]: Invalid value"),
    "two values": (
        environment(name="A", value="", valueFrom={"secretKeyRef": KEY}),
        "set exactly one of value and valueFrom",
    ),
    "reserved name": (
        environment(name="SANDBOX_PLAN", value=""),
        "names that begin with SANDBOX_ are reserved",
    ),
    "name with an equals sign": (environment(name="A=B", value=""), "spec.manifest.environment[0].name"),
    "name with a digit first": (environment(name="1A", value=""), "spec.manifest.environment[0].name"),
    "value with a zero byte": (
        environment(name="A", value="a\0b"),
        "spec.manifest.environment[0].value: Invalid",
    ),
    "value with a zero byte, in words": (
        environment(name="A", value="a\0b"),
        "a value cannot hold a zero byte",
    ),
    "too large an environment": (
        {"manifest": {"environment": [*ALL_OF_THE_ENVIRONMENT, {"name": "E", "value": ""}]}},
        "spec.manifest.environment: Invalid value",
    ),
    "too large an environment, in words": (
        {"manifest": {"environment": [*ALL_OF_THE_ENVIRONMENT, {"name": "E", "value": ""}]}},
        "names, values and references of all variables together can have at most 131072 bytes",
    ),
    "too large a variable": (
        environment(name="ABCD", value="🐍" * 32767),
        "names, values and references of all variables together",
    ),
    "too large an environment of references": (
        {
            "manifest": {
                "environment": [
                    {
                        "name": "N" * 200 + f"{i}",
                        "valueFrom": {"configMapKeyRef": {"name": "n" * 200, "key": "k" * 200}},
                    }
                    for i in range(256)
                ]
            }
        },
        "names, values and references of all variables together",
    ),
    "a name that Secrets cannot have": (
        environment(name="A", valueFrom={"secretKeyRef": {"name": "a/b", "key": "k"}}),
        "spec.manifest.environment[0].valueFrom.secretKeyRef.name: Invalid value",
    ),
    "same name twice": (
        {"manifest": {"environment": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]}},
        "spec.manifest.environment[1]: Duplicate value",
    ),
    # root and grants
    **{
        f"root {root}": ({"manifest": {"root": root}}, sentence)
        for root, sentence in (
            ("work", "spec.manifest.root: Invalid value"),
            ("/", "the root is an absolute path"),
            ("/a/", "the root is an absolute path"),
            ("/a//b", "the root is an absolute path"),
            ("/a/../b", "the root is an absolute path"),
            ("/a/.", "the root is an absolute path"),
            ("/a:b", "the root is an absolute path"),
            ("/proc", "the workspace would hide what the container needs"),
            ("/proc/self", "the workspace would hide what the container needs"),
            ("/.sandbox", "the workspace would hide what the container needs"),
            ("/etc/x", "the workspace would hide what the container needs"),
            ("/home/sandbox/w", "the workspace would hide what the container needs"),
            ("/home", "the workspace would hide what the container needs"),
            ("/usr", "the workspace would hide what the container needs"),
        )
    },
    **{
        f"grant {path}": ({"manifest": {"pathGrants": [{"path": path}]}}, sentence)
        for path, sentence in (
            ("opt/x", "spec.manifest.pathGrants[0].path: Invalid value"),
            ("/a/../b", "a granted path is absolute"),
            ("/a/", "a granted path is absolute"),
            ("/proc", "paths at or beneath /.sandbox and /proc cannot be granted"),
            ("/.sandbox/bin", "paths at or beneath /.sandbox and /proc cannot be granted"),
            ("/" + "é" * 256, "a granted path has at most 512 bytes"),
        )
    },
    # the rest
    "args alone": ({"args": ["x"]}, "spec.args: Invalid value"),
    "command with a zero byte": ({"command": ["a\0b"]}, "spec.command[0]: Invalid value"),
    "args with a zero byte": ({"command": ["a"], "args": ["", "\0"]}, "spec.args[1]: Invalid value"),
    "args with a zero byte, in words": (
        {"command": ["a"], "args": ["", "\0"]},
        "an argument cannot hold a zero byte",
    ),
    "too long a script": (
        {"command": ["c" * 4096] * 4, "args": [*["a" * 4096] * 4, "b"]},
        "spec.command: Invalid value",
    ),
    "too long a script, in words": (
        {"command": ["é" * 4096] * 5},
        "command and args together can have at most 32768 bytes",
    ),
    "too long a grace": ({"lifecycle": {"stopGrace": "1h1s"}}, "spec.lifecycle.stopGrace: Invalid value"),
    "too long a grace, in words": ({"lifecycle": {"stopGrace": "999999h"}}, "a stopGrace is at most 1h"),
    "no volume": (
        {"workspace": {"emptyDir": {"sizeLimit": 0}}},
        "spec.workspace.emptyDir.sizeLimit: Invalid",
    ),
    "no volume, in words": (
        {"workspace": {"emptyDir": {"sizeLimit": "0"}}},
        "a sizeLimit is between 1Mi and 64Ti",
    ),
    "a tiny volume": (
        {"workspace": {"emptyDir": {"sizeLimit": "1000m"}}},
        "a sizeLimit is between 1Mi and 64Ti",
    ),
    "a huge volume": (
        {"workspace": {"emptyDir": {"sizeLimit": "99E"}}},
        "a sizeLimit is between 1Mi and 64Ti",
    ),
    "a resource that cannot be": (
        {"resources": {"limits": {"r" * 100_000: 1}}},
        "a key of requests and limits is a name",
    ),
    "runtime class that cannot be": (
        {"security": {"runtimeClassName": "Kata"}},
        "spec.security.runtimeClassName: Invalid value",
    ),
    "pull secret that cannot be": (
        {"pod": {"imagePullSecrets": [{"name": "-"}]}},
        "spec.pod.imagePullSecrets[0].name: Invalid value",
    ),
    "image with a zero byte": ({"image": "a\0b"}, "spec.image: Invalid value"),
    **{
        f"annotation {key}": (
            annotations(**{key: "x"}),
            "annotations that Kubernetes, the container runtime or the network plugin act on are refused, since "
            "they can loosen what fences the pod in; of them, only these are taken: ",
        )
        for key in (
            "container.apparmor.security.beta.kubernetes.io/workspace",
            "seccomp.security.alpha.kubernetes.io/pod",
            "security.alpha.kubernetes.io/unsafe-sysctls",
            "kubernetes.io/psp",
            "cdi.k8s.io/gpu",
            "k8s.v1.cni.cncf.io/networks",
            "v1.multus-cni.io/default-network",
            "cni.projectcalico.org/ipAddrs",
            "policy.cilium.io/no-track-port",
            "k8s.ovn.org/pod-networks",
            "io.kubernetes.cri-o.Devices",
            "io.katacontainers.config.hypervisor.kernel_params",
            "dev.gvisor.flag.network",
            "run.oci.keep_original_groups",
            "org.systemd.property.DeviceAllow",
            "iam.amazonaws.com/role",
        )
    },
    "AppArmor, by the field's name": (
        annotations(**{"container.apparmor.security.beta.kubernetes.io/workspace": "unconfined"}),
        "spec.pod.annotations: Invalid value",
    ),
    "too many annotations": (
        annotations(**{f"{i}": "x" * 4096 for i in range(4)}),
        "spec.pod.annotations: Inv",
    ),
    "too many annotations, in words": (
        annotations(**{f"{i}": "🐍" * 1024 for i in range(4)}),
        "annotations together can have at most 16384 bytes",
    ),
    "empty command": ({"command": []}, "spec.command"),
    "port 0": ({"ports": [0]}, "spec.ports[0]"),
    "same port twice": ({"ports": [80, 80]}, "spec.ports[1]: Duplicate value"),
    "no time to live": ({"lifecycle": {"ttl": "0s"}}, "a duration is longer than zero"),
    "duration without a unit": ({"lifecycle": {"ttl": "90"}}, "spec.lifecycle.ttl"),
    "duration in fractions": ({"lifecycle": {"startTimeout": "1.5h"}}, "spec.lifecycle.startTimeout"),
    "quantity": ({"resources": {"limits": {"memory": "1 GB"}}}, "spec.resources.limits.memory"),
    "negative quantity": ({"resources": {"limits": {"cpu": -1}}}, "spec.resources.limits.cpu"),
    "request above the limit": (
        {"resources": {"requests": {"memory": "2Gi"}, "limits": {"memory": "2G"}}},
        "a request cannot be larger than the limit of the same resource",
    ),
    "request above the limit, as number": (
        {"resources": {"requests": {"cpu": 2}, "limits": {"cpu": "1500m"}}},
        "a request cannot be larger than the limit of the same resource",
    ),
    "root user": ({"security": {"runAsUser": 0}}, "spec.security.runAsUser"),
    "unknown egress": ({"network": {"egress": "All"}}, "spec.network.egress: Unsupported value"),
    "unknown state": ({"desiredState": "Paused"}, "spec.desiredState: Unsupported value"),
    "our label": (
        {"pod": {"labels": {"sandbox-operator.dev/egress": "internet"}}},
        "labels of sandbox-operator.dev and app.kubernetes.io/managed-by are set by the operator alone",
    ),
    "a label of a subdomain of ours": (
        {"pod": {"labels": {"x.sandbox-operator.dev/a": ""}}},
        "set by the operator alone",
    ),
    "our manager": ({"pod": {"labels": {"app.kubernetes.io/managed-by": "me"}}}, "set by the operator alone"),
    "our annotation": (
        {"pod": {"annotations": {"kubectl.kubernetes.io/default-container": "x"}}},
        "annotations of sandbox-operator.dev and kubectl.kubernetes.io/default-container are set by the "
        "operator alone",
    ),
    "label with a space": ({"pod": {"labels": {"a b": ""}}}, "a key of labels is a name"),
    "label value with a space": ({"pod": {"labels": {"a": "b c"}}}, "spec.pod.labels.a"),
    "selector with a space": ({"pod": {"nodeSelector": {"a b": ""}}}, "a key of nodeSelector is a name"),
    "image with a space": ({"image": "python 3"}, "spec.image"),
    "empty image": ({"image": ""}, "spec.image"),
}
