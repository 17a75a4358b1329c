"""What operators order of a node: cordon or drain, as REST publishes it (in a setting
``node/<name>``) and as the Scheduler reads it.
"""

from datetime import datetime

from muster.contracts.model import Model, OpenEnum

NODE_SETTING = "node/"
"""The settings whose values are orders about nodes begin so; the node's name follows."""


class Order(OpenEnum):
    """Cordon: nothing new is placed there. Drain: and what runs there leaves. None: an order from
    before is over.
    """

    CORDON = "cordon"
    DRAIN = "drain"
    NONE = "none"
    UNKNOWN = "unknown"


class NodeOrder(Model):
    """The order that stands for a node, whether the node is known or not; who gave it and when."""

    node: str
    order: Order
    by: str
    at: datetime
