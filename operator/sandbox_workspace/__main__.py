"""The command line of what runs in a sandbox's pod: `python3 -m sandbox_workspace materialize`."""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Never

from .materialize import Places, materialize
from .outcome import MaterializeError, failure_message, failure_of, report, success_message
from .plan import MAX_PLAN_BYTES, Plan, parse_plan
from .reasons import Reason

PLAN_VARIABLE = "SANDBOX_PLAN"
PLAN_FILE_VARIABLE = "SANDBOX_PLAN_FILE"
POD_UID_VARIABLE = "POD_UID"
TERMINATION_LOG_VARIABLE = "SANDBOX_TERMINATION_LOG"
DEFAULT_TERMINATION_LOG = "/dev/termination-log"


class Stopped(BaseException):
    """The kubelet wants the container to end."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code."""
    options = _parser().parse_args(arguments)
    os.umask(0o022)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stop)
    places = Places(options.workspace, options.agent_dir, options.sources, options.agent_binary)
    try:
        receipt = materialize(_read_plan(), _pod_uid(), places)
    except Stopped:
        failure = MaterializeError(
            Reason.MATERIALIZATION_FAILED, "Stopped before the workspace was filled.", retryable=True
        )
    except Exception as error:  # whatever it is, the outcome is told
        failure = failure_of(error)
    else:
        report(success_message(receipt), options.termination_log)
        return 0
    report(failure_message(failure), options.termination_log)
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="sandbox_workspace", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    command = commands.add_parser("materialize", help="fill the workspace from the plan")
    default = Places()
    command.add_argument("--workspace", type=Path, default=default.workspace)
    command.add_argument("--agent-dir", type=Path, default=default.agent_dir)
    command.add_argument("--sources", type=Path, default=default.sources)
    command.add_argument("--agent-binary", type=Path, default=default.agent_binary)
    command.add_argument(
        "--termination-log",
        type=Path,
        default=Path(os.environ.get(TERMINATION_LOG_VARIABLE, DEFAULT_TERMINATION_LOG)),
    )
    return parser


def _read_plan() -> Plan:
    text = os.environ.get(PLAN_VARIABLE)
    if text:
        return parse_plan(text)
    path = os.environ.get(PLAN_FILE_VARIABLE)
    if not path:
        raise MaterializeError(
            Reason.INVALID_SPEC, f"Neither {PLAN_VARIABLE} nor {PLAN_FILE_VARIABLE} is set."
        )
    try:
        with Path(path).open("rb") as stream:
            return parse_plan(stream.read(MAX_PLAN_BYTES + 1))
    except FileNotFoundError:
        raise MaterializeError(
            Reason.SOURCE_NOT_FOUND, f"The plan {path} is not there.", retryable=True
        ) from None


def _pod_uid() -> str:
    uid = os.environ.get(POD_UID_VARIABLE)
    if not uid:
        raise MaterializeError(Reason.INVALID_SPEC, f"{POD_UID_VARIABLE} is not set.")
    return uid


def _stop(number: int, frame: FrameType | None) -> Never:
    # Once is enough: what runs from here on is the cleaning up.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise Stopped


if __name__ == "__main__":
    sys.exit(main())
