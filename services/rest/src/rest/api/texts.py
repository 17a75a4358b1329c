"""The forms of texts in requests, and what an error says where a text has another one. It never has
the text itself: that may be a secret.
"""

from collections.abc import Mapping

from rest.domain.emails import EMAIL

CLOCK = r"^([01][0-9]|2[0-3]):[0-5][0-9]$"
MAIL = f"^{EMAIL}$"
MAIL_OR_NONE = f"^({EMAIL})?$"
URL = r"^https?://[^\s/?#@]+([/?#]\S*)?$"
HTTPS_URL = r"^https://[^\s/?#@]+([/?#]\S*)?$"
ROUTING_KEY = r"^[A-Za-z0-9_-]{16,64}$"
TOPIC_URL = r"^https?://[^\s/?#@]+/[^\s?#]*[^\s/?#]$"
PRINTABLE = r"^[!-~]*$"

NO_DAY = "is no day: write it like 2026-01-31"
NO_TIME = "is no time: write it like 2026-01-31T13:00:00Z"

FIXES: Mapping[str, str] = {
    CLOCK: "is no time of a day: write it like 22:00",
    MAIL: "is no mail address: write it like ann@example.org",
    MAIL_OR_NONE: "is no mail address: write it like ann@example.org",
    URL: "is no address: write it like https://host/path",
    HTTPS_URL: "is no address with TLS, which it needs: write it like https://host/path",
    ROUTING_KEY: "is no integration key: it has 16 to 64 letters and digits",
    TOPIC_URL: "is no address of a topic: write it like https://host/topic",
    PRINTABLE: "has characters that no token has",
}
"""By the pattern that a text does not match."""

TYPE_FIXES: Mapping[str, str] = {
    "date_parsing": NO_DAY,
    "date_from_datetime_parsing": NO_DAY,
    "date_from_datetime_inexact": NO_DAY,
    "datetime_parsing": NO_TIME,
    "datetime_from_date_parsing": NO_TIME,
    "timezone_aware": NO_TIME,
}
"""By pydantic's type of the fault."""
