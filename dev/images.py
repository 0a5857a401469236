"""The command for images: python3 dev/images.py build | context [--architecture amd64 ...].

`build` provides the images of the working tree to the cluster of CLUSTER_NAME and prints their names.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from dev.local import choice, images
from dev.local.archive import machine_architecture
from dev.local.locations import cluster_name
from dev.local.tool_error import ToolError, exit_code


def main(arguments: list[str] | None = None) -> int:
    """Runs one command; what is missing or wrong is said in one sentence."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("build", help="build the images and bring them to the cluster")
    context = commands.add_parser("context", help="fill build/image for a Docker build by hand")
    context.add_argument("--architecture", action="append", choices=["amd64", "arm64"])
    context.add_argument("--python", default=images.DOCKER_PYTHON, help="version of Python in BASE")
    options = parser.parse_args(arguments)
    return exit_code(lambda: _run(options))


def _run(options: argparse.Namespace) -> None:
    if options.command == "context":
        print(images.fill_context(options.architecture or [machine_architecture()], options.python))
        return
    target = choice.existing(cluster_name())
    if target is None or not target.running():
        raise ToolError(f"The cluster {cluster_name()} is not up: start it with `make cluster`.")
    print(json.dumps(images.provide(target), indent=2))


if __name__ == "__main__":
    sys.exit(main())
