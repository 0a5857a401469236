"""Rules about texts as such: how much of them there may be, and what no system call takes."""

from collections.abc import Iterable
from typing import Annotated

from pydantic import Field

from .rules import Rule

#: Names of most objects of Kubernetes.
ObjectName = Annotated[
    str,
    Field(
        min_length=1,
        max_length=253,
        pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
    ),
]


def size(text: str | None) -> int:
    """Bytes of a text in UTF-8; three for half a surrogate pair, which JSON can hold, as Go counts."""
    return len(text.encode("utf-8", "surrogatepass")) if text is not None else 0


def bytes_cel(owner: str, *members: str) -> str:
    """CEL for the bytes of some members of ``owner`` that are texts or absent, together."""
    return " + ".join(f"(has({owner}.{member}) ? bytes({owner}.{member}).size() : 0)" for member in members)


def total(texts: Iterable[str | None]) -> int:
    """Bytes of texts together."""
    return sum(map(size, texts))


def no_zero_byte(what: str) -> Rule:
    """The kernel ends arguments and variables at a zero byte."""
    return Rule(
        "!self.contains('\\u0000')",
        f"{what} cannot hold a zero byte: the kernel ends texts there",
        lambda text: "\0" not in text,
    )
