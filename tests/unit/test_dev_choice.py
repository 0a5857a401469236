"""Which cluster `make` brings up."""

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from dev.local import choice, current, kind
from dev.local.locations import cluster_name
from dev.local.tool_error import ToolError

Run = Callable[[Sequence[str]], "subprocess.CompletedProcess[str]"]


class Machine:
    """A machine with certain programs, which answer as told and remember what they were asked."""

    def __init__(self, **answers: int | str) -> None:
        self._answers = answers
        self.asked: list[list[str]] = []

    def which(self, program: str) -> str | None:
        return f"/usr/bin/{program}" if program in self._answers else None

    def run(self, command: Sequence[str]) -> "subprocess.CompletedProcess[str]":
        self.asked.append(list(command))
        answer = self._answers.get(Path(command[0]).name, 127)
        code, text = (answer, "") if isinstance(answer, int) else (0, answer)
        return subprocess.CompletedProcess(list(command), code, text, "")


@pytest.fixture(autouse=True)
def state_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for name in ("CLUSTER", "CLUSTER_NAME", "IMAGE_PREFIX"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("wish", "machine", "chosen"),
    [
        ("auto", Machine(docker=0), "kind"),
        ("", Machine(docker=0), "kind"),
        ("auto", Machine(docker=1), "native"),  # a client alone does not count
        ("auto", Machine(), "native"),
        ("native", Machine(docker=0), "native"),
        ("kind", Machine(docker=0), "kind"),
        ("current", Machine(), "current"),
    ],
)
def test_the_flavour_follows_the_wish_and_the_machine(
    wish: str, machine: Machine, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLUSTER", wish)
    assert choice.flavour(machine.run, machine.which) == chosen


def test_kind_without_an_engine_is_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLUSTER", "kind")
    machine = Machine(docker=1)
    with pytest.raises(ToolError, match="CLUSTER=native"):
        choice.flavour(machine.run, machine.which)


def test_an_unknown_wish_is_refused_with_the_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLUSTER", "minikube")
    with pytest.raises(ToolError, match="auto, native, kind, current"):
        choice.flavour(Machine().run, Machine().which)


def test_a_cluster_of_another_kind_is_not_replaced_silently(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    state = tmp_path / "sandbox-operator" / "clusters" / "sbx"
    state.mkdir(parents=True)
    (state / "cluster.json").write_text('{"flavour": "native"}')
    monkeypatch.setenv("CLUSTER", "current")
    with pytest.raises(ToolError, match="exists as native and current is wanted"):
        choice.wanted("sbx")


@pytest.mark.parametrize("name", ["Upper", "-x", "a/b", "..", "x" * 31, "a b"])
def test_a_name_that_could_be_a_path_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLUSTER_NAME", name)
    with pytest.raises(ToolError, match="no cluster name"):
        cluster_name()


def test_the_current_context_needs_a_place_to_push_to() -> None:
    with pytest.raises(ToolError, match="IMAGE_PREFIX"):
        current.CurrentCluster("sbx").up()


def test_kind_deletes_its_cluster_and_forgets_it_also_twice(tmp_path: Path) -> None:
    machine = Machine(kind="sandbox-operator-sbx\n")
    cluster = kind.KindCluster("sbx", machine.run, lambda: "kind")
    cluster.state.mkdir(parents=True)
    cluster.down()
    cluster.down()
    assert machine.asked == [["kind", "delete", "cluster", "--name", "sandbox-operator-sbx"]] * 2
    assert not cluster.state.exists()


def test_kind_is_not_running_where_it_has_no_such_cluster() -> None:
    machine = Machine(kind="another\n")
    assert not kind.KindCluster("sbx", machine.run, lambda: "kind").running()
