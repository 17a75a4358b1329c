"""A mail address that its user is to confirm, as REST publishes it (in a setting
``confirmation/<id>``) and as Alerting reads it. It never holds the code: see muster.codes.
"""

from datetime import datetime

from pydantic import Field

from muster.contracts.model import Model

CONFIRMATION_SETTING = "confirmation/"
"""The settings whose values are confirmations begin so; the confirmation's id follows."""


class Confirmation(Model):
    """Alerting mails the code of this confirmation to ``email``, once, for ``user``. The code is
    valid until ``expires_at``; the setting is removed once the code is used, replaced or expired.
    """

    id: str = Field(min_length=1, max_length=64)
    user: str = Field(min_length=1, max_length=64)
    email: str = Field(max_length=320)
    expires_at: datetime
