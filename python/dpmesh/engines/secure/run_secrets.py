"""A site's secrets of one run, from which masks are derived.

The primitives are those of the `cryptography` package: X25519 agrees on secrets, and HKDF with
SHA-256 derives one secret for each use.
"""

from __future__ import annotations

from dataclasses import dataclass
from secrets import token_bytes

from dpmesh._extras import needed_by
from dpmesh.engines.signing import KEY_BYTES

with needed_by("a deployed secure sum"):
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

PREFIX = b"dpmesh/secure-sum/1/"


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
            The contract's hash.
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
