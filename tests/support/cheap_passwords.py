"""In a test's own process, passwords cost next to nothing: a hash as the product makes it takes a
tenth of a second, and each start of REST needs three.
"""

from argon2 import PasswordHasher
from argon2.profiles import CHEAPEST
from rest.handlers import passwords

REAL = passwords.HASHER
"""The product's."""

passwords.HASHER = PasswordHasher.from_parameters(CHEAPEST)
