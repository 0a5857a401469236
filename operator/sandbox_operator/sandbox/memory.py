"""What a process remembers of a sandbox beyond what the cluster says; losing it costs a retry, nothing more."""

from dataclasses import dataclass, field

from .diagnose import Problem

#: A pod that lived longer starts the count of losses anew.
_FORGET_AFTER = 600.0
_LAST_PAUSE = 60.0
_RETRY_FIRST, _RETRY_LAST = 5.0, 60.0


@dataclass(slots=True)
class Refusal:
    """A write that the API server refused for what it says, not for the moment.

    Attributes:
        problem: What is said in the status.
        generation: Generation of the spec that was refused.
        retry_at: When to try again, in seconds since the epoch; None: when the spec changes.
        count: How often in a row.
    """

    problem: Problem
    generation: int
    retry_at: float | None
    count: int = 1


@dataclass(slots=True)
class Memory:
    """One sandbox's."""

    refusal: Refusal | None = None
    losses: int = 0
    last_start: float | None = None
    gone_pod: str = ""
    """UID of the pod that was last looked for and not found."""
    told: dict[tuple[str, str], float] = field(default_factory=dict)
    """Events told already, by reason and note, and when."""

    def started(self, now: float) -> None:
        """A pod was created."""
        if self.last_start is not None:
            self.losses = 0 if now - self.last_start > _FORGET_AFTER else self.losses + 1
        self.last_start = now
        self.refusal = None

    def may_start_at(self) -> float:
        """When the next pod may be created: at once at first, then after a pause that doubles."""
        if self.last_start is None or self.losses == 0:
            return 0.0
        return self.last_start + min(_LAST_PAUSE, 2.0 ** min(self.losses - 1, 10))

    def refused(self, problem: Problem, generation: int, now: float) -> None:
        """A write was refused."""
        count = 1
        if self.refusal is not None and self.refusal.generation == generation:
            count = self.refusal.count + 1
        pause = min(_RETRY_LAST, _RETRY_FIRST * 2 ** min(count - 1, 8))
        self.refusal = Refusal(problem, generation, now + pause if problem.retryable else None, count)
