"""Kubernetes quantities: 500m, 2, 1Gi."""

from decimal import Decimal
from typing import Annotated

from pydantic import BeforeValidator, Field

from .rules import Keywords

_SUFFIXES = {"": Decimal(1), "m": Decimal("0.001")}
_SUFFIXES |= {letter: Decimal(1000) ** power for power, letter in enumerate("kMGTPE", 1)}
_SUFFIXES |= {f"{letter}i": Decimal(1024) ** power for power, letter in enumerate("KMGTPE", 1)}

#: A whole number may be written as a number, so it arrives as one, too.
Quantity = Annotated[
    str,
    Field(pattern=r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$", max_length=32),
    BeforeValidator(lambda value: str(value) if type(value) is int else value),
    Keywords(minimum=0, x_kubernetes_int_or_string=True),
]


def amount(quantity: str) -> Decimal:
    """A quantity as a number."""
    digits = quantity.rstrip("mkKMGTPEi")
    return Decimal(digits) * _SUFFIXES[quantity[len(digits) :]]
