"""The command for local clusters: python3 dev/cluster.py up | down | control-plane | status | kubeconfig | enter | load-image.

CLUSTER chooses the kind (auto, native, kind, current) and CLUSTER_NAME which of several. Only the standard library is used.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

if sys.version_info < (3, 11):  # said before anything that an older Python cannot read
    sys.exit(
        f"Python {sys.version_info[0]}.{sys.version_info[1]} is too old: run this with Python 3.11 or newer."
    )

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from dev.local import choice, native
from dev.local.control_plane import FLAVOUR as CONTROL_PLANE
from dev.local.control_plane import ControlPlane
from dev.local.failure import Failure
from dev.local.locations import cluster, cluster_name, clusters
from dev.local.progress import say


def main(arguments: list[str] | None = None) -> int:
    """Runs one command; what is missing or wrong is said in one sentence."""
    options = _parser().parse_args(arguments)
    try:
        return _run(options)
    except Failure as failure:
        print(failure, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


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
    commands.add_parser("kubeconfig", help="print the path of the cluster's kubeconfig")
    enter = commands.add_parser("enter", help="run a command inside a native cluster's namespaces")
    enter.add_argument("inside", nargs=argparse.REMAINDER, metavar="COMMAND")
    load = commands.add_parser("load-image", help="load image archives into the cluster")
    load.add_argument("archives", nargs="+", type=Path)
    return parser


def _run(options: argparse.Namespace) -> int:
    name = options.name or cluster_name()
    if options.command == "up":
        wanted = choice.wanted(name)
        wanted.up()
        print(wanted.kubeconfig)
    elif options.command == "control-plane":
        if choice.recorded_flavour(name) not in (None, CONTROL_PLANE):
            raise Failure(f"{name} is a whole cluster already: choose another name with --name.")
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
        print(_existing(name).kubeconfig)
    elif options.command == "enter":
        inside = [word for i, word in enumerate(options.inside) if i or word != "--"] or ["bash"]
        entered = _existing(name)
        if not isinstance(entered, native.NativeCluster):
            raise Failure("Only a native cluster has namespaces to enter: use kubectl with its kubeconfig.")
        entered.enter(inside)
    elif options.command == "load-image":
        for file in options.archives:
            _existing(name).load_image(file)
    return 0


def _all_names() -> list[str]:
    return sorted(folder.name for folder in clusters().iterdir()) if clusters().exists() else []


def _existing(name: str) -> choice.Cluster:
    found = choice.existing(name)
    if found is None:
        raise Failure(f"There is no cluster {name}: start it with `make cluster`.")
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
