"""JSON of the API server, whatever people have put into their objects.

Whoever may write an object may nest it deeper than Python's parser goes (``managedFields`` of every kind, and what a
schema leaves open), and may put bytes into ``managedFields`` that are no UTF-8. In a list or a watch, that one object
would hide all others.
"""

import json
import re
from typing import Any

#: What is nested deeper becomes null, once there is something that cannot be parsed as it is. No schema needs as much.
MAX_DEPTH = 128
_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.DOTALL)


class TolerantDecoder(json.JSONDecoder):
    """A decoder that survives deep nesting."""

    def decode(self, s: str, *more: Any) -> Any:
        """See :class:`json.JSONDecoder`."""
        try:
            return super().decode(s, *more)
        except RecursionError:
            return super().decode(_shallow(s), *more)


_DECODER = TolerantDecoder()


def decode_json(text: bytes) -> Any:
    """What an answer says.

    Raises:
        ValueError: It is not JSON.
    """
    return _DECODER.decode(text.decode("utf-8", "replace"))


def _shallow(text: str) -> str:
    parts, depth, kept = [], 0, 0
    for token in _TOKEN.finditer(text):
        kind = text[token.start()]
        if kind in "{[":
            if depth == MAX_DEPTH:
                parts += [text[kept : token.start()], "null"]
            depth += 1
        elif kind in "}]":
            depth -= 1
            if depth == MAX_DEPTH:
                kept = token.end()
    return "".join([*parts, text[kept:]])
