"""How many failed passwords are borne: few of one user from one address, more of one user, and more
from one address.
"""

import hashlib
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address, ip_network

from muster.errors import Rejected

MANY = 10
"""Times as many failures of one user from several addresses, or of several users from one: others
still get in. So an attacker needs this many addresses to lock a user out.
"""

IPV6_NETWORK_BITS = 64
"""What one subscriber has: an attacker can use all its addresses."""

LOOPBACK = "loopback"
"""A process of this machine can use each of the 16 million addresses of 127.0.0.0/8."""


class TooManyRequests(Rejected):
    """The caller has to wait."""

    def __init__(self, message: str, retry_after_s: int) -> None:
        super().__init__("TooManyRequestsError", message)
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class Attempt:
    """A password that somebody gives for a user, as the digests under which a failure counts."""

    pair: bytes
    user: bytes
    address: bytes

    def limits(self, attempts: int) -> dict[bytes, int]:
        """How many failures each may have."""
        return {self.pair: attempts, self.user: MANY * attempts, self.address: MANY * attempts}


def attempt(username: str, address: str) -> Attempt:
    """An attempt from an address."""
    network = network_of(address)
    return Attempt(
        _digest("pair", username, network), _digest("user", username), _digest("address", network)
    )


def network_of(address: str) -> str:
    """What counts as one address."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped is not None:
        parsed = parsed.ipv4_mapped
    if parsed.is_loopback:
        return LOOPBACK
    if not isinstance(parsed, IPv6Address):
        return str(parsed)
    return str(ip_network((int(parsed), IPV6_NETWORK_BITS), strict=False))


def _digest(*parts: str) -> bytes:
    return hashlib.sha256("\0".join(parts).encode()).digest()
