"""How the nodes of a Kubernetes cluster come by the images of pods."""

from typing import Literal

ImagePullPolicy = Literal["Always", "IfNotPresent", "Never"]
"""When a node asks the registry, by Kubernetes' names. In records it is text, so that a later
version may know another one.
"""

STEP_PULL_SECRET = "muster-step"  # noqa: S105  a name, which the agents' policy has too
"""In both namespaces of jobs, where Muster's registry needs a log-in: an operator makes it."""
