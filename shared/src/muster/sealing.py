"""Text that only the holder of a private key reads: the secrets of jobs on their way to pods.

The format is libsodium's sealed box (X25519, XSalsa20-Poly1305), in base64. PyNaCl, because nothing
here needs certificates or other ciphers, which ``cryptography`` has besides. Keys are 32 bytes in
base64. ``python -m muster.make_secrets_key`` prints a new pair.
"""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Iterable

from nacl.bindings import crypto_box_SEALBYTES
from nacl.exceptions import CryptoError
from nacl.public import Box, PrivateKey, PublicKey, SealedBox

KEY_BYTES = 32

_EPHEMERAL = b"muster sealing: an ephemeral key\n"


def make_private_key() -> str:
    """A new private key."""
    return _text(bytes(PrivateKey.generate()))


def public_key_of(private_key: str) -> str:
    """The public key that belongs to it. Raises ValueError where it is no key."""
    return _text(bytes(_private(private_key).public_key))


def check_public_key(key: str) -> None:
    """Raises ValueError where it is no key."""
    _key(key)


def seal(content: str, to: str) -> str:
    """The text, for the holder of the private key of ``to``. Twice the same is never equal."""
    return _text(SealedBox(PublicKey(_key(to))).encrypt(content.encode()))


def seal_again(content: str, to: str, private_key: str) -> str:
    """The text, sealed as ``seal`` does, but always to the same result.

    The ephemeral key is not drawn but derived from the sealer's private key and from all that is
    sealed: one HKDF-Expand of RFC 5869, whose input nobody else knows. So another text or another
    receiver has another ephemeral key, and no key and nonce ever serve two texts. An observer only
    learns whether two sealed texts are of the same content and receiver.
    """
    receiver = PublicKey(_key(to))
    info = _EPHEMERAL + bytes(receiver) + content.encode() + b"\x01"
    ephemeral = PrivateKey(hmac.digest(bytes(_private(private_key)), info, "sha256"))
    sender = bytes(ephemeral.public_key)
    nonce = hashlib.blake2b(sender + bytes(receiver), digest_size=Box.NONCE_SIZE).digest()
    return _text(sender + Box(ephemeral, receiver).encrypt(content.encode(), nonce).ciphertext)


def unseal(sealed: str, private_keys: Iterable[str]) -> str:
    """The text that was sealed for one of these keys. Raises ValueError where it was for none."""
    try:
        box = base64.b64decode(sealed, validate=True)
    except binascii.Error as error:
        raise ValueError("this is no sealed text") from error
    for key in private_keys:
        try:
            return SealedBox(_private(key)).decrypt(box).decode()
        except CryptoError:
            continue
    raise ValueError("the text is sealed for another key, or was changed")


def sealed_length(content_bytes: int) -> int:
    """The characters of a text of so many bytes, once it is sealed."""
    return 4 * -(-(content_bytes + crypto_box_SEALBYTES) // 3)


def _private(key: str) -> PrivateKey:
    return PrivateKey(_key(key))


def _key(key: str) -> bytes:
    try:
        found = base64.b64decode(key, validate=True)
    except (binascii.Error, ValueError):
        found = b""
    if len(found) != KEY_BYTES:
        raise ValueError(
            "is no key, which has 44 characters of base64; `python -m muster.make_secrets_key`"
            " prints a new pair"
        )
    return found


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()
