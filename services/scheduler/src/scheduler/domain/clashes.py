"""Two machines with one node name: their agents report under it, each from its own journal.

An agent that loses its journal changes it once. A name clashes while two journals report in turns,
again and again.
"""

from collections import defaultdict
from dataclasses import dataclass
from math import inf

from muster.contracts.nodes import NodeReport

JOURNALS = 8
"""The most journals that are kept for one name: an agent may lose its journal at each start."""


@dataclass(frozen=True, slots=True)
class Clash:
    """Two journals that report under one name since ``since`` seconds, and the addresses of their
    agents.
    """

    journals: tuple[str, str]
    addresses: tuple[str, str]
    since: float


@dataclass(frozen=True, slots=True)
class _Voice:
    """A journal's newest report. ``again_at``: when it last reported again after another one."""

    revision: int
    address: str
    again_at: float = -inf


class Clashes:
    """``quiet_s``: the clash ends for a journal that has not reported again after another one for
    this long.
    """

    def __init__(self, quiet_s: float) -> None:
        self._quiet_s = quiet_s
        self._voices: defaultdict[str, dict[str, _Voice]] = defaultdict(dict)
        self._since: dict[str, float] = {}

    def report(self, report: NodeReport, at: float) -> None:
        """A node has reported, at ``at`` seconds. A report that was read before changes nothing."""
        voices = self._voices[report.node]
        known = voices.get(report.journal)
        if known is not None and report.revision <= known.revision:
            return
        again_at = -inf if known is None else known.again_at
        if known is not None and next(reversed(voices)) != report.journal:
            again_at = at
        voices.pop(report.journal, None)
        voices[report.journal] = _Voice(report.revision, report.address, again_at)  # the last one
        if len(voices) > JOURNALS:
            del voices[next(iter(voices))]

    def forget(self, node: str) -> None:
        """The node was removed."""
        self._voices.pop(node, None)
        self._since.pop(node, None)

    def look(self, node: str, now: float) -> Clash | None:
        """The clash of the name now; of more than two journals it names two."""
        voices = self._voices.get(node, {})
        again = sorted(
            (journal, voice.address)
            for journal, voice in voices.items()
            if now - voice.again_at < self._quiet_s
        )
        if len(again) < 2:
            self._since.pop(node, None)
            return None
        (one, address), (other, other_address) = again[:2]
        since = self._since.setdefault(node, now)
        return Clash((one, other), (address, other_address), since)
