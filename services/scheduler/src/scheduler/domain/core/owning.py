"""Who owns cells: virtual clusters and pins, by the names of owners."""


def owner_of(virtual_cluster: str) -> str:
    """The owner of a virtual cluster's bound cells."""
    return f"vc {virtual_cluster}"


def pin_owner(pin: str) -> str:
    """The owner of a pinned cell."""
    return f"pin {pin}"
