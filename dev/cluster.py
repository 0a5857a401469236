"""The command for local clusters: python3 dev/cluster.py COMMAND (--help shows them).

CLUSTER chooses the kind (auto, native, kind, current) and CLUSTER_NAME which of several. Only the standard
library is used, since this runs before the virtual environment exists.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from pathlib import Path

if sys.version_info < (3, 11):  # noqa: UP036 -- said before anything that an older Python cannot read
    sys.exit(
        f"Python {sys.version_info[0]}.{sys.version_info[1]} is too old: run this with Python 3.11 or newer."
    )

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from dev.local import binaries, choice, native
from dev.local.control_plane import FLAVOUR as CONTROL_PLANE
from dev.local.control_plane import ControlPlane
from dev.local.locations import cache, cluster, cluster_name, clusters
from dev.local.progress import say
from dev.local.tool_error import ToolError, exit_code


def main(arguments: list[str] | None = None) -> int:
    """Runs one command; what is missing or wrong is said in one sentence."""
    options = _parser().parse_args(arguments)
    return exit_code(lambda: _run(options))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--name", default=None, help="name of the cluster (default: $CLUSTER_NAME, else sbx)")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("up", help="bring the cluster up and print its kubeconfig")
    down = commands.add_parser("down", help="remove the cluster and everything it made")
    down.add_argument("--all", action="store_true", help="every cluster and control plane of this user")
    commands.add_parser(
        "control-plane", help="bring up an API server and etcd only, and print the kubeconfig"
    )
    commands.add_parser("status", help="say which clusters exist and which are up")
    kubeconfig = commands.add_parser("kubeconfig", help="print the path of the cluster's kubeconfig")
    kubeconfig.add_argument(
        "--export", action="store_true", help="as a line for the shell, with kubectl in PATH"
    )
    run = commands.add_parser("run", help="run a command here, with KUBECONFIG, KUBECTL and PATH set")
    run.add_argument("inside", nargs=argparse.REMAINDER, metavar="COMMAND")
    enter = commands.add_parser("enter", help="run a command inside a native cluster's namespaces")
    enter.add_argument("inside", nargs=argparse.REMAINDER, metavar="COMMAND")
    commands.add_parser("clean-cache", help="remove the binaries and images built outside the clone")
    load = commands.add_parser("load-image", help="load image archives into the cluster")
    load.add_argument("archives", nargs="+", type=Path)
    return parser


def _run(options: argparse.Namespace) -> None:
    name = options.name or cluster_name()
    if options.command == "up":
        wanted = choice.wanted(name)
        wanted.up()
        print(wanted.kubeconfig)
    elif options.command == "control-plane":
        if choice.recorded_flavour(name) not in (None, CONTROL_PLANE):
            raise ToolError(f"{name} is a whole cluster already: choose another name with --name.")
        control_plane = ControlPlane(name)
        control_plane.up()
        print(control_plane.kubeconfig)
    elif options.command == "down":
        for each in _all_names() if options.all else [name]:
            _take_down(each)
    elif options.command == "status":
        for each in _all_names():
            _describe(each)
    elif options.command == "kubeconfig":
        path = _existing(name).kubeconfig
        print(
            f'export KUBECONFIG={path} PATH="{binaries.kubectl().parent}:$PATH"' if options.export else path
        )
    elif options.command == "run":
        _run_beside(_existing(name), _command(options.inside))
    elif options.command == "enter":
        inside = _command(options.inside)
        entered = _existing(name)
        if not isinstance(entered, native.NativeCluster):
            raise ToolError("Only a native cluster has namespaces to enter: use kubectl with its kubeconfig.")
        entered.enter(inside)
    elif options.command == "clean-cache":
        up = [each for each in _all_names() if (found := choice.existing(each)) and found.running()]
        if up:
            raise ToolError(f"Clusters run from the cache ({', '.join(up)}): run `make clean-cluster` first.")
        if cache().exists():
            shutil.rmtree(cache())
    elif options.command == "load-image":
        for file in options.archives:
            _existing(name).load_image(file)


def _command(words: list[str]) -> list[str]:
    return (words[1:] if words[:1] == ["--"] else words) or ["bash"]


def _run_beside(target: choice.Cluster, command: list[str]) -> None:
    """Turns this process into a command that finds the cluster, its kubectl and the demo's image."""
    kubectl = binaries.kubectl()
    environment = {
        **os.environ,
        "KUBECONFIG": str(target.kubeconfig),
        "KUBECTL": str(kubectl),
        "PATH": f"{kubectl.parent}{os.pathsep}{os.environ.get('PATH', '/usr/bin:/bin')}",
    }
    images = target.state / "images.json"
    if images.exists():
        environment.setdefault("DEMO_IMAGE", json.loads(images.read_text())["demo"])
    if shutil.which(command[0], path=environment["PATH"]) is None:
        raise ToolError(f"There is no command {command[0]!r}: check its spelling.")
    os.execvpe(command[0], command, environment)


def _all_names() -> list[str]:
    return sorted(folder.name for folder in clusters().iterdir()) if clusters().exists() else []


def _existing(name: str) -> choice.Cluster:
    found = choice.existing(name)
    if found is None:
        raise ToolError(f"There is no cluster {name}: start it with `make cluster`.")
    return found


def _take_down(name: str) -> None:
    found = choice.existing(name)
    if found is not None:
        found.down()
        say(f"The cluster {name} is removed.")
    elif cluster(name).exists():  # its start was cut off before anything ran
        shutil.rmtree(cluster(name))


def _describe(name: str) -> None:
    found = choice.existing(name)
    state = "unfinished" if found is None else "up" if found.running() else "down"
    print(f"{name}\t{choice.recorded_flavour(name) or '?'}\t{state}\t{cluster(name) / 'kubeconfig'}")


if __name__ == "__main__":
    sys.exit(main())
