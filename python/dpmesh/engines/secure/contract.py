"""What the sites agree on before a run, outside of the server: public numbers and signing keys."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import cached_property

from dpmesh._validate import fail, instance
from dpmesh.engines.signing import KEY_BYTES, digest
from dpmesh.privacy.secure import SecureSum


@dataclass(frozen=True, kw_only=True)
class Contract:
    """The public numbers of a run's sums, what is learned, and the sites' keys.

    Parameters
    ----------
    numbers
        The grid, the noise, the modulus, and how often sums are released.
    model
        What is learned and how, in words or code: loss, features, order of the records' columns.
        Sites with another text do not agree.
    site_keys
        The public Ed25519 key of each site, 32 bytes, exchanged by people who know each other.

    Raises
    ------
    ValueError
        If there is not one key for each site, or two are equal.
    """

    numbers: SecureSum
    model: str
    site_keys: tuple[bytes, ...]

    def __post_init__(self) -> None:
        instance("numbers", self.numbers, "a SecureSum", SecureSum)
        instance("model", self.model, "a text", str)
        instance("site_keys", self.site_keys, "a tuple of public keys", tuple)
        if len(self.site_keys) != self.numbers.sites:
            wanted = f"a key for each of {self.numbers.sites} sites"
            fail("site_keys", wanted, f"{len(self.site_keys)} keys")
        for site, key in enumerate(self.site_keys):
            if not isinstance(key, bytes) or len(key) != KEY_BYTES:
                fail("site_keys", f"{KEY_BYTES} bytes for each site", f"others for site {site}")
            if key in self.site_keys[:site]:
                twin = self.site_keys.index(key)
                fail("site_keys", "different keys", f"the same for sites {twin} and {site}")

    @cached_property
    def fingerprint(self) -> bytes:
        """SHA-256 of everything in the contract, and of the numbers that follow from it."""
        numbers = self.numbers
        follows = [numbers.steps, numbers.modulus_bits, numbers.share.hex()]
        text = json.dumps([asdict(numbers), follows], sort_keys=True)
        return digest(b"dpmesh contract 1", text.encode(), self.model.encode(), *self.site_keys)
