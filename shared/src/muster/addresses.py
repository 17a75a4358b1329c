"""Which addresses Muster may connect to: those in networks that the operator allows, for webhooks
those of the public internet too. Addresses that carry another one inside (mapped, 6to4, NAT64,
Teredo) count as that one.
"""

from collections.abc import Sequence
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

NAT64 = IPv6Network("64:ff9b::/96")
"""RFC 6052: the last 32 bits are an IPv4 address."""

SITE_LOCAL = IPv6Network("fec0::/10")
"""RFC 3879: no longer given out, but some networks still have them inside."""

CLOUD_PLATFORM = (ip_network("168.63.129.16/32"), ip_network("192.0.0.0/24"))
"""Addresses outside the private ranges at which clouds serve what only a machine of theirs may
read (Azure's wire server; Oracle's metadata in the protocol assignments' range)."""

INSIDE: tuple[Network, ...] = (*CLOUD_PLATFORM, SITE_LOCAL)


def is_within(text: str, networks: Sequence[Network]) -> bool:
    """Whether an address, as text, lies in one of the networks."""
    address = _address(text)
    return address is not None and any(
        address.version == net.version and address in net for net in networks
    )


def is_public_or_within(text: str, networks: Sequence[Network]) -> bool:
    """Whether an address, as text, is one of the public internet or lies in one of the networks."""
    address = _address(text)
    if address is None or is_within(text, networks):
        return address is not None
    return address.is_global and not (
        address.is_multicast
        or address.is_reserved
        or address.is_unspecified
        or any(address.version == net.version and address in net for net in INSIDE)
    )


def is_loopback(host: str) -> bool:
    """Whether only this machine's processes reach what listens on this host."""
    address = _address(host)
    return host == "localhost" if address is None else address.is_loopback


def _address(text: str) -> Address | None:
    try:
        return _inner(ip_address(text.split("%", 1)[0]))
    except ValueError:
        return None


def _inner(address: Address) -> Address:
    if isinstance(address, IPv4Address):
        return address
    if address in NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    teredo = address.teredo
    return address.ipv4_mapped or address.sixtofour or (teredo[1] if teredo else address)


def networks_of(text: str) -> tuple[Network, ...]:
    """Networks from a list like ``10.0.0.0/8, fd00::/8``. Raises ValueError that names the wrong
    one.
    """
    return tuple(ip_network(part.strip()) for part in text.split(",") if part.strip())
