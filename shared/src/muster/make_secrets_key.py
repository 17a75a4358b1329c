"""Prints a new key pair for the secrets of jobs: ``python -m muster.make_secrets_key``."""

import sys

from muster.sealing import make_private_key, public_key_of


def main() -> None:
    """Print the Launcher's setting and REST's."""
    key = make_private_key()
    sys.stdout.write(f"MUSTER_SECRETS_KEYS={key}\nMUSTER_SECRETS_PUBLIC_KEY={public_key_of(key)}\n")


if __name__ == "__main__":
    main()
