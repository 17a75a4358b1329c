"""Mail addresses: what is one, and which a subscription may name."""

from muster.errors import Problem, Rejected

EMAIL = r"[^@\s,;<>\x00-\x1f\x7f-\x9f]+@[^@\s,;<>\x00-\x1f\x7f-\x9f]+"


def check_receiver(confirmed: str, email: str | None) -> None:
    """Raises Rejected where a subscription of a user who is no admin may not mail to this address:
    else they could make Muster mail other people. ``confirmed``: the confirmed address of its
    owner, empty where there is none; ``email``: None for a webhook.
    """
    if email is None or email == confirmed:
        return
    message = (
        "A subscription may only mail to the confirmed address of its owner's account"
        f" ({confirmed or 'there is none'})."
    )
    fix = "set this address with `PUT /users/me`, then confirm it with the code that it gets"
    raise Rejected("UnconfirmedEmailError", message, (Problem("email", fix),))
