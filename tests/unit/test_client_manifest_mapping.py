"""The SDK's manifest as a Sandbox's: a table of what becomes what, and properties of any manifest."""

import base64
from pathlib import Path

import pytest
from agents.sandbox.entries import Dir, File, GitRepo, LocalDir, LocalFile, S3Mount
from agents.sandbox.entries.mounts import InContainerMountStrategy, RcloneMountPattern
from agents.sandbox.errors import ConfigurationError, InvalidManifestPathError
from agents.sandbox.manifest import EnvEntry, Environment, Manifest, StrEnvValue
from agents.sandbox.types import Group, Permissions, User
from agents.sandbox.workspace_paths import SandboxPathGrant
from hypothesis import given, settings
from hypothesis import strategies as st
from sandbox_api.v1alpha1 import MAX_ENTRIES, MAX_INLINE_CHARACTERS, SandboxSpec
from sandbox_api.v1alpha1.validation import problems

from runner_client.manifest_mapping import map_manifest, plan_manifest


def plan(**fields):
    return plan_manifest(Manifest(**fields), secret_name="s-env")


def wire(**fields):
    return plan(**fields).manifest.to_wire()


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        (File(content=b"text"), {"file": {"content": "text"}}),
        (File(content="Grüße\n\t".encode()), {"file": {"content": "Grüße\n\t"}}),
        (File(content=b""), {"file": {"content": ""}}),
        (File(content=b"\xff\x00"), {"file": {"contentBase64": "/wA="}}),
        (File(content=b"nul\0"), {"file": {"contentBase64": base64.b64encode(b"nul\0").decode()}}),
        (File(content=b"bell\a"), {"file": {"contentBase64": base64.b64encode(b"bell\a").decode()}}),
        (Dir(), {"dir": {}}),
        (LocalDir(), {"dir": {}}),
        (LocalDir(src=Path("x")), {"localDir": {}}),
        (LocalFile(src=Path("x")), {"localFile": {}}),
        (
            GitRepo(repo="org/name", ref="main"),
            {"gitRepo": {"host": "github.com", "repo": "org/name", "ref": "main"}},
        ),
        (
            GitRepo(host="git.dev:8443", repo="a/b/c", ref="v1", subpath="docs/"),
            {"gitRepo": {"host": "git.dev:8443", "repo": "a/b/c", "ref": "v1", "subpath": "docs"}},
        ),
        (
            File(content=b"x", description="what", ephemeral=True, permissions=Permissions(owner=6)),
            {"file": {"content": "x"}, "description": "what", "ephemeral": True, "permissions": "rw-------"},
        ),
    ],
)
def test_entries(entry, expected):
    assert wire(entries={"e": entry}) == {"entries": {"e": expected}}


def test_directories_are_flattened():
    entries = {"a": Dir(children={"b": Dir(children={"c.md": File(content=b"1")}), "d": File(content=b"2")})}
    assert wire(entries=entries) == {
        "entries": {
            "a": {"dir": {}},
            "a/b": {"dir": {}},
            "a/b/c.md": {"file": {"content": "1"}},
            "a/d": {"file": {"content": "2"}},
        }
    }


@pytest.mark.parametrize("path", ["./a//b/.", "a/b/", Path("a/b")])
def test_paths_are_normalized(path):
    assert list(wire(entries={path: File(content=b"1")})["entries"]) == ["a/b"]


@pytest.mark.parametrize("path", ["with space", "quote'\"", "line\nbreak", "ünï", "-rf", "x -> y", "a.b"])
def test_odd_names_are_kept(path):
    assert list(wire(entries={path: File(content=b"1")})["entries"]) == [path]


@pytest.mark.parametrize("path", ["/abs", "../x", "a/../../x", "a/../x"])
def test_paths_that_leave_the_workspace(path):
    with pytest.raises(InvalidManifestPathError):
        plan(entries={path: File(content=b"1")})


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"users": [User(name="bob")]}, "run_as"),
        ({"groups": [Group(name="g", users=[])]}, "groups"),
        ({"entries": {"e": File(content=b"", group=Group(name="g", users=[]))}}, "group"),
        ({"entries": {"": File(content=b"")}}, "workspace itself"),
        ({"entries": {".": Dir(permissions=Permissions(owner=7))}}, "permissions"),
        ({"entries": {"a": File(content=b""), "./a": File(content=b"")}}, "two entries"),
        ({"entries": {"a": File(content=b""), "a/b": File(content=b"")}}, "beneath 'a', which is a file"),
        ({"entries": {"a": LocalFile(src=Path("x")), "a/b/c": Dir()}}, "which is a file"),
        ({"entries": {"a": GitRepo(repo="o/n", ref="m"), "a/b": GitRepo(repo="o/n", ref="m")}}, "beneath"),
        ({"entries": {"a": GitRepo(repo="o/n", ref="m", subpath="../x")}}, "subpath"),
        ({"entries": {"a\0b": File(content=b"")}}, "zero byte"),
        ({"environment": Environment(value={"a b": "x"})}, "environment variable"),
        ({"environment": Environment(value={"A": "x\0"})}, "zero byte"),
        ({"environment": Environment(value={f"V{i}": "" for i in range(257)})}, "256"),
        ({"extra_path_grants": (SandboxPathGrant(path="/x", host_path="/y"),)}, "host_path"),
        (
            {
                "entries": {
                    "m": S3Mount(
                        bucket="b", mount_strategy=InContainerMountStrategy(pattern=RcloneMountPattern())
                    )
                }
            },
            "mount",
        ),
    ],
)
def test_what_is_not_supported_is_refused_with_a_sentence(fields, says):
    with pytest.raises(ConfigurationError, match=says) as caught:
        plan(**fields)
    assert caught.value.retryable is False


def test_the_workspace_itself_can_be_uploaded():
    mapped = plan(entries={".": LocalDir(src=Path("project"))})
    assert mapped.manifest.entries is None
    assert [u.path for u in mapped.uploads] == [""]
    assert not mapped.awaits_upload


def test_root_and_grants():
    fields = wire(
        root="/srv/work",
        extra_path_grants=(
            SandboxPathGrant(path="/opt/tools", read_only=True),
            SandboxPathGrant(path="/data"),
        ),
    )
    assert fields == {
        "root": "/srv/work",
        "pathGrants": [{"path": "/opt/tools", "readOnly": True}, {"path": "/data"}],
    }


async def test_environment():
    environment = Environment(
        value={
            "PLAIN": "v",
            "SECRET": StrEnvValue(value="s"),
            "ENTRY": EnvEntry(value=StrEnvValue(value="e")),
            "HUGE": "x" * 40_000,
        }
    )
    mapped = await map_manifest(Manifest(environment=environment), secret_name="s-env")
    assert mapped.manifest.to_wire()["environment"] == [
        {"name": "PLAIN", "value": "v"},
        {"name": "SECRET", "valueFrom": {"secretKeyRef": {"name": "s-env", "key": "SECRET"}}},
        {"name": "ENTRY", "valueFrom": {"secretKeyRef": {"name": "s-env", "key": "ENTRY"}}},
        {"name": "HUGE", "valueFrom": {"secretKeyRef": {"name": "s-env", "key": "HUGE"}}},
    ]
    assert mapped.secret_values == {"SECRET": "s", "ENTRY": "e", "HUGE": "x" * 40_000}
    assert "'s'" not in repr(mapped)


def test_values_are_not_looked_up_by_a_plan():
    class Broken(StrEnvValue):
        async def resolve(self) -> str:
            raise AssertionError

    mapped = plan(environment=Environment(value={"A": Broken(value="x")}))
    assert mapped.secret_values == {"A": ""}


def test_the_biggest_files_are_carried_when_the_resource_is_full():
    entries = {f"f{i}": File(content=b"x" * 40_000) for i in range(4)}
    entries["small"] = File(content=b"s")
    entries["big"] = File(content=b"y" * 100_000)
    mapped = plan(entries=entries)
    assert {u.path for u in mapped.uploads} == {"big", "f0"}
    posted = mapped.manifest.to_wire()["entries"]
    assert posted["big"] == {"localFile": {}}
    assert posted["small"] == {"file": {"content": "s"}}
    assert mapped.awaits_upload


def test_more_entries_than_a_resource_takes():
    entries = {f"d{i:03}": Dir(children={"f": File(content=b"1")}) for i in range(400)}
    entries["zz"] = GitRepo(repo="o/n", ref="m")
    mapped = plan(entries=entries)
    posted = mapped.manifest.to_wire()["entries"]
    assert len(posted) == MAX_ENTRIES
    assert "zz" in posted
    assert {u.path for u in mapped.uploads} == {
        p for i in range(400) for p in (f"d{i:03}", f"d{i:03}/f") if p not in posted
    }


def test_paths_too_deep_for_a_resource_are_carried():
    deep = "/".join("abcdefghijklmno")
    mapped = plan(entries={deep: File(content=b"1"), "a": File(content=b"2") if False else Dir()})
    assert [u.path for u in mapped.uploads] == [deep]
    with pytest.raises(ConfigurationError, match="levels"):
        plan(entries={deep: GitRepo(repo="o/n", ref="m")})


def test_only_ephemeral():
    entries = {
        "durable": File(content=b"1"),
        "cache": Dir(ephemeral=True, children={"x": File(content=b"2")}),
        "d": Dir(children={"keep": File(content=b"3"), "tmp": File(content=b"4", ephemeral=True)}),
    }
    mapped = plan_manifest(Manifest(entries=entries), secret_name="s", only_ephemeral=True)
    assert set(mapped.manifest.to_wire()["entries"]) == {"cache", "cache/x", "d/tmp"}


names = st.text(
    st.characters(blacklist_characters="/\\\0", blacklist_categories=("Cs",)), min_size=1, max_size=12
).filter(lambda n: n not in (".", "..") and not n.endswith(":") and ":" not in n)
permissions = st.builds(
    Permissions, owner=st.integers(0, 7), group=st.integers(0, 7), other=st.integers(0, 7)
)
leaves = st.one_of(
    st.builds(File, content=st.binary(max_size=200), permissions=permissions, ephemeral=st.booleans()),
    st.builds(File, content=st.integers(0, 90_000).map(lambda n: b"x" * n)),
    st.builds(GitRepo, repo=st.just("o/n"), ref=st.just("main")),
    st.builds(LocalDir, src=st.just(Path("src"))),
    st.builds(LocalFile, src=st.just(Path("src/f"))),
)
trees = st.recursive(
    leaves, lambda inner: st.builds(Dir, children=st.dictionaries(names, inner, max_size=5)), max_leaves=25
)


@given(st.dictionaries(names, trees, max_size=8))
@settings(max_examples=150, deadline=None)
def test_any_manifest_keeps_all_its_entries_and_makes_a_valid_resource(entries):
    manifest = Manifest(entries=entries)
    mapped = plan_manifest(manifest, secret_name="s")
    again = plan_manifest(manifest, secret_name="s")
    assert again == mapped
    posted = mapped.manifest.to_wire().get("entries", {})
    carried = {u.path for u in mapped.uploads}
    wanted = {path.as_posix() for path, _ in manifest.iter_entries()}
    assert set(posted) | carried == wanted
    spec = SandboxSpec.model_validate({"manifest": mapped.manifest.to_wire()})
    assert problems(spec) == []
    inline = sum(len(e["file"].get("content", "").encode()) for e in posted.values() if "file" in e)
    assert inline <= MAX_INLINE_CHARACTERS
    for path, entry in manifest.iter_entries():
        found = posted.get(path.as_posix())
        if isinstance(entry, File) and found and "file" in found:
            file = found["file"]
            content = (
                file["content"].encode() if "content" in file else base64.b64decode(file["contentBase64"])
            )
            assert content == entry.content
