"""Durations and moments as the API writes them."""

import re
from datetime import UTC, datetime

_DURATION = re.compile(r"(?:(\d{1,6})h)?(?:(\d{1,6})m)?(?:(\d{1,6})s)?")


def parse_duration(text: str) -> float:
    """Seconds of ``90s``, ``10m``, ``1h30m``.

    Raises:
        ValueError: It is something else.
    """
    match = _DURATION.fullmatch(text)
    if match is None or not any(match.groups()):
        raise ValueError(f"{text!r} is not a duration such as 90s, 10m or 1h30m")
    hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(hours * 3600 + minutes * 60 + seconds)


def parse_time(text: str) -> float:
    """Seconds since the epoch of an RFC 3339 time of the API server.

    Raises:
        ValueError: It is something else.
    """
    return datetime.fromisoformat(text).timestamp()


def format_time(seconds: float) -> str:
    """The form that metav1.Time has: UTC, whole seconds."""
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def format_micro_time(seconds: float) -> str:
    """The form that metav1.MicroTime has."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def in_words(seconds: float) -> str:
    """A short form for messages: 45s, 5m, 1h30m."""
    whole = int(seconds)
    hours, rest = divmod(whole, 3600)
    minutes, secs = divmod(rest, 60)
    parts = [f"{n}{unit}" for n, unit in ((hours, "h"), (minutes, "m"), (secs, "s")) if n]
    return "".join(parts) or "0s"
