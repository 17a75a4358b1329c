"""Which virtual clusters there are and how the Scheduler decides, as administrators have set it:
REST publishes it (in the setting ``scheduling``) and the Scheduler reads it.
"""

from datetime import datetime
from typing import Any

from pydantic import Field

from muster.contracts.model import Model

SCHEDULING_SETTING = "scheduling"
"""The setting with this value; null: the cluster's file or the nodes decide again."""


class SchedulingConfig(Model):
    """``content``: ``virtualClusters`` or ``policy`` of a cluster's file, or both, each whole: what
    is in it replaces that part of the file. ``version``: its number. ``by``: its author.
    """

    version: int = Field(ge=1, le=2**62)
    content: dict[str, Any]
    by: str
    at: datetime
