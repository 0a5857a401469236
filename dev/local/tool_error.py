"""The one error that the development tools show to people."""

from __future__ import annotations


class ToolError(Exception):
    """Something is missing or went wrong; the message is one clear sentence with the remedy."""
