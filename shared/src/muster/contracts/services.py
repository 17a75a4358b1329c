"""What each service broadcasts of itself."""

from datetime import datetime, timedelta

from muster.contracts.model import Model, Revision

SERVICE_STARTED = "service-started"

CLOCKS_DIFFER = timedelta(minutes=1)


class ServiceStarted(Model):
    """The state of a service's database (see muster.incarnation).

    ``database``: PostgreSQL's system identifier and timeline. ``revision``: the beat, which is a
    time in milliseconds since 1970 at which the service had just committed something. ``restored``:
    the beat at which it last found its database restored, 0 for never. What it committed after
    ``asOf`` may be lost. Without that all is lost, and peers republish what is open.
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
