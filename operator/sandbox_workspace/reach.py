"""A look whether a host can be reached at all, before git is asked.

git gives a connection that nobody answers five minutes, and says little about why; here it takes seconds,
and the sentence can name the likely cause. Name and connection are tried again briefly: right after a pod's
start its network policies and DNS may still be on their way.
"""

import os
import selectors
import socket
import threading
import time

from .outcome import MaterializeError
from .reasons import Reason

CONNECT_SECONDS = 15.0
RETRY_PAUSES = (0.3, 1.0, 2.0)
_HINT = "Check the name, and what the sandbox's network.egress admits."


class _RefusedError(Exception):
    """An answer came, and it was no."""


def check_reachable(host: str, port: int, deadline: float) -> None:
    """Connect once and hang up.

    Raises:
        MaterializeError: GitHostUnreachable, retryable.
    """
    limit = min(deadline, time.monotonic() + CONNECT_SECONDS)
    for pause in (*RETRY_PAUSES, None):
        try:
            _connect(_resolve(host, port, limit), limit)
            return
        except TimeoutError:
            problem = f"{host}:{port} does not answer. {_HINT}"
            break
        except _RefusedError as error:
            problem = f"{host}:{port} cannot be reached: {error}. {_HINT}"
            if pause is None or time.monotonic() + pause >= limit:
                break
        time.sleep(pause)
    raise MaterializeError(Reason.GIT_HOST_UNREACHABLE, problem, retryable=True)


def _resolve(host: str, port: int, limit: float) -> list[tuple[int, tuple[object, ...]]]:
    """Addresses of a host; in a thread, since the resolver heeds neither time limits nor signals."""
    found: list[tuple[int, tuple[object, ...]]] = []
    problems: list[str] = []

    def look_up() -> None:
        try:
            for family, _, _, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
                found.append((family, address))
        except (OSError, UnicodeError) as error:
            problems.append(getattr(error, "strerror", None) or "the name is malformed")

    thread = threading.Thread(target=look_up, daemon=True)
    thread.start()
    thread.join(max(0.0, limit - time.monotonic()))
    if problems:
        raise _RefusedError(f"the name cannot be resolved ({problems[0]})")
    if thread.is_alive() or not found:
        raise TimeoutError
    return found


def _connect(addresses: list[tuple[int, tuple[object, ...]]], limit: float) -> None:
    """Try all addresses at once: one that works is enough, as it is for git's own attempt."""
    problem = "no address"
    sockets: list[socket.socket] = []
    try:
        with selectors.DefaultSelector() as selector:
            for family, address in addresses:
                try:
                    attempt = socket.socket(family, socket.SOCK_STREAM)
                    sockets.append(attempt)
                    attempt.setblocking(False)
                    attempt.connect(address)
                except BlockingIOError:
                    selector.register(attempt, selectors.EVENT_WRITE, attempt)
                except OSError as error:
                    problem = os.strerror(error.errno or 0)
                else:
                    return
            while selector.get_map():
                ready = selector.select(max(0.0, limit - time.monotonic()))
                if not ready:
                    raise TimeoutError
                for key, _ in ready:
                    attempt = key.data
                    code = attempt.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                    if code == 0:
                        return
                    problem = os.strerror(code)
                    selector.unregister(attempt)
        raise _RefusedError(problem)
    finally:
        for attempt in sockets:
            attempt.close()
