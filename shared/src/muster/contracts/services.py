"""What each service tells of itself."""

from datetime import datetime

from muster.contracts.model import Model, Revision

SERVICE_STARTED = "service-started"


class ServiceStarted(Model):
    """The state of a service's database (see muster.incarnation).

    ``database``: PostgreSQL's system identifier and timeline. ``revision``: the beat, a counter that
    rises with each start and with each second in which the service committed something.
    ``restored``: the beat at which it last found its database restored, 0 for never; what it
    committed after ``asOf`` may be lost.
    """

    service: str
    database: str
    revision: Revision
    restored: Revision = 0
    as_of: datetime | None = None
    at: datetime
