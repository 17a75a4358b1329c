"""Prints the service key of a service that REST reads: ``python -m muster.derive_key AUDIENCE``.

The cluster key comes from MUSTER_CLUSTER_KEY or a secret file, never from the command line, which
every process of the machine can read.
"""

import sys

from muster.service_keys import ALERTING, SCHEDULER, agent, service_key
from muster.settings import ClusterKeySettings, read


def main(arguments: list[str]) -> None:
    """Print the key. Ends the process where the audience or the cluster key is wrong."""
    audience = arguments[0] if len(arguments) == 1 else ""
    if audience not in (SCHEDULER, ALERTING) and not audience.startswith(agent("")):
        sys.exit(f"usage: python -m muster.derive_key {SCHEDULER} | {ALERTING} | {agent('NODE')}")
    key = read(ClusterKeySettings).cluster_key.get_secret_value()
    if not key:
        sys.exit("MUSTER_CLUSTER_KEY is not set: set it to the one of REST")
    sys.stdout.write(service_key(key, audience) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
