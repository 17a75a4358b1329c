"""Kubernetes' quantities: a number with a decimal or binary suffix."""

from __future__ import annotations

from decimal import Decimal

_FACTORS = {
    "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"), "": Decimal(1),
    "k": Decimal(10**3), "M": Decimal(10**6), "G": Decimal(10**9), "T": Decimal(10**12),
    "P": Decimal(10**15), "E": Decimal(10**18), "Ki": Decimal(2**10), "Mi": Decimal(2**20),
    "Gi": Decimal(2**30), "Ti": Decimal(2**40), "Pi": Decimal(2**50), "Ei": Decimal(2**60),
}  # fmt: skip


def quantity(text: str) -> Decimal:
    """Raises ValueError where it is none."""
    number = text.rstrip("numkKMGTPEi")
    suffix = text[len(number) :]
    if suffix not in _FACTORS:
        raise ValueError(f"{text!r} is no quantity of Kubernetes")
    try:
        return Decimal(number) * _FACTORS[suffix]
    except ArithmeticError as error:
        raise ValueError(f"{text!r} is no quantity of Kubernetes") from error


def cpus(text: str) -> float:
    """Of a quantity of CPUs."""
    return float(quantity(text))


def mebibytes(text: str) -> float:
    """Of a quantity of bytes."""
    return float(quantity(text) / 2**20)
