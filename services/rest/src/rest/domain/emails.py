"""Mail addresses: what is one, and which a subscription may name."""

from muster.errors import Problem, Rejected

from rest.domain.callers import Caller

EMAIL = r"[^@\s,;<>\x00-\x1f\x7f-\x9f]+@[^@\s,;<>\x00-\x1f\x7f-\x9f]+"


def check_receiver(caller: Caller, confirmed: str, email: str | None) -> None:
    """Raises Rejected where the caller may not subscribe this address: else they could make Muster
    mail other people. ``confirmed``: their own confirmed address, empty where there is none;
    ``email``: None for a webhook. An admin operates the cluster and names any address.
    """
    if email is None or caller.is_admin or email == confirmed:
        return
    message = (
        "A subscription may only mail to the confirmed address of your account"
        f" ({confirmed or 'there is none'})."
    )
    fix = "set this address with `PUT /users/me`, then confirm it with the code that it gets"
    raise Rejected("UnconfirmedEmailError", message, (Problem("email", fix),))
