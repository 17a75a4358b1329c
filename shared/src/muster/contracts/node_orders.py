"""An operator's order about a node: cordon or drain, as REST publishes it (in a setting
``node/<name>``) and as the Scheduler reads it.
"""

from datetime import datetime

from muster.contracts.model import Model, OpenEnum

NODE_SETTING = "node/"
"""The prefix of settings whose values are orders about nodes; the node's name follows."""


class Order(OpenEnum):
    """Cordon: nothing new is placed there. Drain: gangs there are preempted, too. None: an earlier
    order has ended.
    """

    CORDON = "cordon"
    DRAIN = "drain"
    NONE = "none"
    UNKNOWN = "unknown"


class NodeOrder(Model):
    """The order in force for a node, known or not; its author and time."""

    node: str
    order: Order
    by: str
    at: datetime
