"""Whether a feed that we do not run ourselves still tells us things.

A watch can hang open for ever. What we write must come back through it; what does not within seconds says that the
feed is dead, while a quiet cluster says nothing.
"""

import time


class Canary:
    """Remembers, for each watch of a feed, the first write of ours that has not come back yet.

    Resource versions are numbers that grow, so any later event through the same watch is a sign of life as well.
    """

    def __init__(self) -> None:
        self._heard: dict[str, int] = {}
        self._waiting: dict[str, tuple[int, float]] = {}

    def wrote(self, scope: str, version: str) -> None:
        """A write of ours was answered with a version; ``scope`` is the watch that should tell of it."""
        if version.isdigit() and int(version) > self._heard.get(scope, 0):
            self._waiting.setdefault(scope, (int(version), time.monotonic()))

    def heard(self, scope: str, version: str) -> None:
        """The feed told of a version."""
        if not version.isdigit():
            return
        self._heard[scope] = max(self._heard.get(scope, 0), int(version))
        waiting = self._waiting.get(scope)
        if waiting is not None and waiting[0] <= self._heard[scope]:
            del self._waiting[scope]

    def silent_seconds(self) -> float:
        """How long the oldest write has not come back."""
        now = time.monotonic()
        return max((now - since for _, since in self._waiting.values()), default=0.0)
