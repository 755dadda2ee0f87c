"""Ed25519 keys of parties, signatures over fields, and messages made of fields.

The primitives are those of the `cryptography` package.
"""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path

from dpmesh._extras import needed_by
from dpmesh._validate import fail

with needed_by("a contract between parties"):
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )

KEY_BYTES = 32
_PRIME = 2**255 - 19
_CURVE = -121665 * pow(121666, -1, _PRIME)
"""d of the curve -x^2 + y^2 = 1 + d x^2 y^2 modulo `_PRIME` (RFC 8032, section 5.1)."""
LENGTH_BYTES = 8
"""Bytes of the length before each field of a message, most significant byte first."""


class SigningKey:
    """A party's long-term Ed25519 key. Its public half is in the contract.

    Examples
    --------
    >>> import dpmesh as dm
    >>> key = dm.deploy.SigningKey.generate()
    >>> len(key.public)
    32
    """

    def __init__(self, private: Ed25519PrivateKey) -> None:
        self._private = private

    @classmethod
    def generate(cls) -> SigningKey:
        """Return a new key from the operating system's randomness."""
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def load(cls, path: str | Path) -> SigningKey:
        """Return the key of a file that `save` wrote.

        Raises
        ------
        ValueError
            If it holds no Ed25519 key.
        """
        key = serialization.load_pem_private_key(Path(path).read_bytes(), password=None)
        if not isinstance(key, Ed25519PrivateKey):
            fail("path", "a file with an Ed25519 private key", type(key).__name__)
        return cls(key)

    def save(self, path: str | Path) -> None:
        """Write the key as PEM into a new file that only its owner can read.

        Raises
        ------
        FileExistsError
            If the file exists.
        """
        pem = self._private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(pem)

    @property
    def public(self) -> bytes:
        """The public key, 32 bytes."""
        return self._private.public_key().public_bytes_raw()

    def sign(self, *fields: bytes) -> bytes:
        """Return a signature over fields, each with its length."""
        return self._private.sign(digest(*fields))


def is_public_key(public: bytes) -> bool:
    """Return True if 32 bytes are a point of Ed25519's curve whose order is not small.

    Under a key of small order anybody can sign, and `is_signed` accepts it. A point (x, y) has an
    order of 1, 2, 4 or 8 where y (y^2 - 1) (d y^4 + 2 y^2 - 1) is 0.
    """
    y = int.from_bytes(public, "little") & (2**255 - 1)
    square = y * y
    # 1 if x^2 = (y^2 - 1) / (d y^2 + 1) has a solution other than x = 0 (Euler's criterion)
    character = pow((square - 1) * (_CURVE * square + 1), (_PRIME - 1) // 2, _PRIME)
    return y < _PRIME and character == 1 and y * (_CURVE * square**2 + 2 * square - 1) % _PRIME != 0


def is_signed(public: bytes, signature: bytes, *fields: bytes) -> bool:
    """Return True if a signature of these fields is valid under a public key."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, digest(*fields))
    except (InvalidSignature, ValueError):
        return False
    return True


def digest(*fields: bytes) -> bytes:
    """Return the SHA-256 of fields, each with its length, so that none runs into the next."""
    return sha256(pack(*fields)).digest()


def pack(*fields: bytes) -> bytes:
    """Return fields as one message, each with its length."""
    return b"".join(
        part for field in fields for part in (len(field).to_bytes(LENGTH_BYTES, "big"), field)
    )


def unpack(message: bytes) -> tuple[bytes, ...]:
    """Return the fields that `pack` was given.

    Raises
    ------
    ValueError
        If the message is not made of fields.
    """
    fields = []
    offset = 0
    while offset < len(message):
        start = offset + LENGTH_BYTES
        offset = start + int.from_bytes(message[offset:start], "big")
        if start > len(message) or offset > len(message):
            fail("message", "fields with their lengths", f"{len(message)} bytes that end early")
        fields.append(message[start:offset])
    return tuple(fields)
