"""The one error that the development tools show to people, and how a tool ends with it."""

from __future__ import annotations

import sys
from collections.abc import Callable


class ToolError(Exception):
    """Something is missing or went wrong; the message is one clear sentence with the remedy."""


def exit_code(work: Callable[[], object]) -> int:
    """Does a tool's work and gives what the process is to exit with; a ToolError is shown as its sentence."""
    try:
        work()
    except ToolError as failure:
        print(failure, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0
