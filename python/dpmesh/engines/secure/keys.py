"""Keys of a site: a long-term one that signs, and secrets of one run from which masks are derived.

All primitives are those of the `cryptography` package: Ed25519 signs, X25519 agrees on secrets, and
HKDF with SHA-256 derives one secret for each use.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from secrets import token_bytes

from dpmesh._extras import needed_by
from dpmesh._validate import fail

with needed_by("a deployed secure sum"):
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

PREFIX = b"dpmesh/secure-sum/1/"
KEY_BYTES = 32


class SigningKey:
    """A site's long-term Ed25519 key. Its public half is in the contract."""

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


def is_signed(public: bytes, signature: bytes, *fields: bytes) -> bool:
    """Return whether the owner of a public key signed these fields."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, digest(*fields))
    except (InvalidSignature, ValueError):
        return False
    return True


@dataclass(frozen=True, repr=False)
class RunSecrets:
    """A site's secrets of one run: an X25519 key and 32 bytes of its own. Erased at its end."""

    agreement: bytes
    own: bytes

    @classmethod
    def generate(cls) -> RunSecrets:
        """Return new secrets from the operating system's randomness."""
        return cls(X25519PrivateKey.generate().private_bytes_raw(), token_bytes(KEY_BYTES))

    @property
    def public(self) -> bytes:
        """The public half of the X25519 key."""
        private = X25519PrivateKey.from_private_bytes(self.agreement)
        return private.public_key().public_bytes_raw()

    def pair(self, other: bytes, sites: tuple[int, int], salt: bytes, attempt: bytes) -> bytes:
        """Return the secret shared with another site for one attempt.

        Parameters
        ----------
        other
            The other site's public X25519 key.
        sites
            The numbers of both.
        salt
            The contract's fingerprint.
        attempt
            The digest of all that the sites must agree on.

        Raises
        ------
        ValueError
            If the key agreement gives zeros, as for a public key of low order.
        """
        private = X25519PrivateKey.from_private_bytes(self.agreement)
        shared = private.exchange(X25519PublicKey.from_public_bytes(other))
        ids = b"".join(site.to_bytes(4, "big") for site in sorted(sites))
        return derive(shared, salt, b"mask", attempt, ids)

    def derived(self, use: bytes, salt: bytes, *context: bytes) -> int:
        """Return the seed of a stream of this site alone, a function of the context."""
        return int.from_bytes(derive(self.own, salt, use, *context), "little")


def derive(secret: bytes, salt: bytes, use: bytes, *context: bytes) -> bytes:
    """Return 32 bytes by HKDF-SHA256."""
    info = PREFIX + use + b"".join(context)
    return HKDF(hashes.SHA256(), KEY_BYTES, salt, info).derive(secret)


def digest(*fields: bytes) -> bytes:
    """Return the SHA-256 of fields, each with its length, so that none runs into the next."""
    total = sha256()
    for field in fields:
        total.update(len(field).to_bytes(8, "big"))
        total.update(field)
    return total.digest()
