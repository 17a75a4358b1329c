"""References in commands, ``<% $scope.name %>``: where they are, and the secrets among them.

REST finds them in job files, agents fill in the secrets. Agents need nothing of
``muster.protocol``, which reads YAML.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

OPEN, CLOSE = "<%", "%>"
SECRETS = "secrets"
_SECRET = f"${SECRETS}"


@dataclass(frozen=True, slots=True)
class Reference:
    """A reference at ``start`` to ``end`` of a text; ``inner`` is it without brackets."""

    start: int
    end: int
    inner: str

    @property
    def is_secret(self) -> bool:
        """Whether it is a secret, which only the node fills in."""
        after = self.inner[len(_SECRET) :][:1]
        return self.inner.startswith(_SECRET) and not (after.isalnum() or after == "_")


def references(text: str) -> Iterator[Reference]:
    """All references of a text. Linear in the text."""
    position = 0
    while (start := text.find(OPEN, position)) >= 0:
        close = text.find(CLOSE, start + len(OPEN))
        if close < 0:
            return
        position = close + len(CLOSE)
        inner = text[start + len(OPEN) : close].strip()
        if inner.startswith("$"):
            yield Reference(start, position, inner)


def fill_in(text: str, secrets: Mapping[str, str]) -> str:
    """The text with its secrets, which ``secrets`` has by their references. What a value looks like
    makes no difference: it is not read again.
    """
    pieces: list[str] = []
    position = 0
    for found in references(text):
        if found.is_secret and found.inner in secrets:
            pieces += (text[position : found.start], secrets[found.inner])
            position = found.end
    pieces.append(text[position:])
    return "".join(pieces)
