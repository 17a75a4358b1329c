"""Counts in sentences."""


def counted(number: object, noun: str) -> str:
    """So many of something: `1 node`, `2 nodes`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
