"""What agents asked of the API server, from its audit log as it grows."""

import json
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

AGENT = "system:serviceaccount:muster-system:muster-agent"
_MARK = AGENT.encode()
STANDING = ("list", "watch")
"""Calls for each node and minute, not for each pod."""


@dataclass
class AgentCalls:
    """Since the last `begin`: calls by verb and kind, and when each pod was bound (Unix times)."""

    path: Path
    by_verb: Counter[str] = field(default_factory=Counter)
    refused: Counter[int] = field(default_factory=Counter)
    bound_at: dict[str, float] = field(default_factory=dict)
    _offset: int = 0
    _rest: bytes = b""

    def begin(self) -> None:
        """Leave out what was before."""
        self.look()
        self.by_verb.clear()
        self.refused.clear()
        self.bound_at.clear()

    def look(self) -> int:
        """Read on; how many pods are bound."""
        with self.path.open("rb") as log:
            log.seek(self._offset)
            content = log.read()
        self._offset += len(content)
        *lines, self._rest = (self._rest + content).split(b"\n")
        for line in lines:
            if _MARK in line:
                self._take(json.loads(line))
        return len(self.bound_at)

    @property
    def last_s(self) -> float:
        """When the last pod was bound."""
        return max(self.bound_at.values())

    @property
    def about_pods(self) -> int:
        """Calls that pods cost."""
        return sum(n for name, n in self.by_verb.items() if name.split()[0] not in STANDING)

    def _take(self, event: dict[str, object]) -> None:
        user, about, status = (event.get(key) for key in ("user", "objectRef", "responseStatus"))
        assert isinstance(user, dict)
        assert isinstance(about, dict)
        if user.get("username") != AGENT or event["stage"] == "ResponseStarted":
            return
        verb, code = str(event["verb"]), status.get("code", 0) if isinstance(status, dict) else 0
        self.by_verb[f"{verb} {about.get('resource')}"] += 1
        if code >= 300:
            self.refused[code] += 1
        elif verb == "create" and about.get("resource") == "pods":
            at = datetime.fromisoformat(str(event["stageTimestamp"])).timestamp()
            self.bound_at[f"{about['namespace']}/{about['name']}"] = at
