"""When a node asks the registry for a task's image."""

from typing import Literal

ImagePullPolicy = Literal["Always", "IfNotPresent", "Never"]
"""By Kubernetes' names. In records it is text, so that a later version may know another one."""
