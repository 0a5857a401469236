"""A queue of keys: one entry a key however often it is asked for, one worker a key, pauses after failures."""

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

from sandbox_api.kube.jitter import jittered

K = TypeVar("K", bound=Hashable)

FIRST_PAUSE = 0.05
LAST_PAUSE = 60.0


class KeyedQueue(Generic[K]):
    """Keys to be worked on.

    A key that is asked for while a worker has it is handed out again when the worker is done. Delayed
    requests are kept one a key, the earliest wins, and a key that is handed out forgets its delayed
    request: whoever worked on it says anew when it wants to be woken.
    """

    def __init__(self) -> None:
        self._ready: deque[K] = deque()
        self._queued: set[K] = set()
        self._working: set[K] = set()
        self._again: set[K] = set()
        self._failures: dict[K, int] = {}
        self._due: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._order = itertools.count()
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        """Keys that wait for a worker now."""
        return len(self._ready)

    def add(self, key: K) -> None:
        """Ask for a key."""
        if key in self._working:
            self._again.add(key)
        elif key not in self._queued:
            self._queued.add(key)
            self._ready.append(key)
            self._wake()

    def add_after(self, key: K, seconds: float) -> None:
        """Ask for a key later; an earlier request for it stays."""
        if seconds <= 0:
            self.add(key)
            return
        due = asyncio.get_running_loop().time() + seconds
        if due >= self._due.get(key, float("inf")):
            return
        self._due[key] = due
        heapq.heappush(self._heap, (due, next(self._order), key))
        self._arm()

    async def get(self) -> K:
        """Take a key; tell :meth:`done` afterwards."""
        while not self._ready:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled():
                    self._wake()  # the wake-up was for somebody who can use it
                raise
            finally:
                if waiter in self._waiters:
                    self._waiters.remove(waiter)
        key = self._ready.popleft()
        self._queued.discard(key)
        self._working.add(key)
        self._due.pop(key, None)
        return key

    def done(self, key: K) -> None:
        """The work on a key went well."""
        self._failures.pop(key, None)
        self._release(key)

    def failed(self, key: K, at_least: float = 0.0) -> float:
        """The work on a key failed: it comes again after a pause that doubles; returns the pause in seconds.

        Events about the key cut the pause short, since they may be the remedy.
        """
        count = self._failures.get(key, 0)
        self._failures[key] = count + 1
        pause = max(at_least, jittered(min(LAST_PAUSE, FIRST_PAUSE * 2 ** min(count, 16))))
        self._release(key)
        self.add_after(key, pause)
        return pause

    def forget(self, key: K) -> None:
        """Drop what is remembered of a key, requests included."""
        self._failures.pop(key, None)
        self._due.pop(key, None)
        self._again.discard(key)

    def _release(self, key: K) -> None:
        self._working.discard(key)
        if key in self._again:
            self._again.discard(key)
            self.add(key)

    def _wake(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._heap and self._due.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)  # outdated by an earlier request, or by the work itself
        if self._heap:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(self._heap[0][0], self._fire)

    def _fire(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        while self._heap and self._heap[0][0] <= now:
            due, _, key = heapq.heappop(self._heap)
            if self._due.get(key) == due:
                del self._due[key]
                self.add(key)
        self._arm()

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
