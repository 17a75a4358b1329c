"""What the bus refuses this service now, for want of a right: an operator must grant it."""

from collections.abc import Mapping

import structlog
from aiokafka.errors import (
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    SaslAuthenticationFailed,
    TopicAuthorizationFailedError,
    UnsupportedSaslMechanismError,
)

from muster.errors import Transient
from muster.metrics import PlumbingMetrics

_log = structlog.get_logger()

NOT_AUTHORIZED = (
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    SaslAuthenticationFailed,
    TopicAuthorizationFailedError,
    UnsupportedSaslMechanismError,
)


class RefusedError(Transient):
    """The bus refuses it to this user. It is retried: a right may be granted meanwhile."""


class Refusals:
    """By what is refused ("publish job-updated", "read", "log in"): the reason. A change is logged
    once, however often it is tried; the number is a metric, and a service with any is not ready.
    """

    def __init__(self, user: str, metrics: PlumbingMetrics) -> None:
        self._user = user or "ANONYMOUS"
        self._metrics = metrics
        self._reasons: dict[str, str] = {}

    @property
    def reasons(self) -> Mapping[str, str]:
        """What is refused now."""
        return self._reasons

    def note(self, what: str, reason: str | None) -> None:
        """The bus has refused something; with None it has allowed it."""
        before = self._reasons.pop(what, None)
        if reason is None:
            if before is None:
                return
            _log.info("the bus refuses it no more", what=what, user=self._user)
        else:
            self._reasons[what] = reason
        if reason not in (None, before):
            fix = f"grant User:{self._user} its rights: python -m muster.bus_admin (docs/kafka.md)"
            _log.error("the bus refuses", what=what, user=self._user, reason=reason, fix=fix)
        self._metrics.refusals.set(len(self._reasons))
