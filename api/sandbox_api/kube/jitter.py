"""Pauses that differ from client to client, so that those of one outage do not come back in one moment."""

import random


def jittered(seconds: float, low: float = 0.5, high: float = 1.0) -> float:
    """Seconds times a random factor between low and high."""
    return seconds * random.uniform(low, high)  # noqa: S311 - nothing secret hangs on it
