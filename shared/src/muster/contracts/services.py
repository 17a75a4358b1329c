"""What each service tells of itself."""

from datetime import datetime, timedelta

from muster.contracts.model import Model, Revision

SERVICE_STARTED = "service-started"

CLOCKS_DIFFER = timedelta(minutes=1)


class ServiceStarted(Model):
    """The state of a service's database (see muster.incarnation).

    ``database``: PostgreSQL's system identifier and timeline. ``revision``: the beat, which is the
    last second since 1970 in which the service committed something. ``restored``: the beat at which
    it last found its database restored, 0 for never; what it committed after ``asOf`` may be lost.
    """

    service: str
    database: str
    revision: Revision
    restored: Revision = 0
    as_of: datetime | None = None
    at: datetime

    @property
    def lost_since(self) -> datetime:
        """What changed after this may be lost. Clocks differ, so it is a little earlier."""
        return (self.as_of or self.at) - CLOCKS_DIFFER
