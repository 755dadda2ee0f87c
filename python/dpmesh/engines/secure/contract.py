"""What the sites agree on before a run, outside of the server: public numbers and signing keys."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import get_args

from dpmesh._validate import fail, instance, one_of
from dpmesh.engines.signing import KEY_BYTES, digest
from dpmesh.privacy.plan import Plan
from dpmesh.privacy.releases import Release
from dpmesh.privacy.sampling import PoissonSampling
from dpmesh.privacy.secure import DistributedDiscreteGaussian, SecureSum
from dpmesh.privacy.sensitivity import Sensitivity
from dpmesh.privacy.types import Unit


@dataclass(frozen=True, kw_only=True)
class Contract:
    """The public numbers of one run's sums, what is learned, and the sites' keys.

    Parameters
    ----------
    numbers
        The grid, the noise, the modulus, and how often sums are released.
    model
        What is learned and how, in words or code: loss, features, order of the records' columns.
        Sites with another text do not agree. A contract serves one run, so that another one with
        the same numbers needs another text.
    site_keys
        The public Ed25519 key of each site, 32 bytes, exchanged by people who know each other.
    unit
        What a site clips and what is protected: each record, or the site with all that it holds.

    Raises
    ------
    ValueError
        If there is not one key for each site, or two are equal.
    """

    numbers: SecureSum
    model: str
    site_keys: tuple[bytes, ...]
    unit: Unit = "record"

    def __post_init__(self) -> None:
        instance("numbers", self.numbers, "a SecureSum", SecureSum)
        instance("model", self.model, "a text", str)
        instance("site_keys", self.site_keys, "a tuple of public keys", tuple)
        one_of("unit", self.unit, get_args(Unit))
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
    def hash(self) -> bytes:
        """SHA-256 of everything in the contract, and of the numbers that follow from it."""
        numbers = self.numbers
        follows = [numbers.steps, numbers.modulus_bits, numbers.share.hex(), self.unit]
        text = json.dumps([asdict(numbers), follows], sort_keys=True)
        return digest(b"dpmesh contract 2", text.encode(), self.model.encode(), *self.site_keys)

    @cached_property
    def plan(self) -> Plan:
        """What a site is charged for a run: its rounds, and one more for each dropout."""
        numbers, sampling = self.numbers, None
        replaced = numbers.neighboring_relation == "replace_one"
        if numbers.sampling_rate < 1 and not replaced:
            sampling = PoissonSampling(numbers.sampling_rate)
        said = f"{numbers.diameter:g} C, replaced" if replaced else "C, added or removed"
        moved = Sensitivity(numbers.moved, "l2", said)
        mechanism = DistributedDiscreteGaussian(numbers)
        return Plan(
            releases=tuple(
                Release(attempt, mechanism, moved, sampling=sampling)
                for attempt in range(numbers.attempts)
            ),
            neighboring_relation=numbers.neighboring_relation,
            unit=self.unit,
            assumptions=numbers.assumptions_about("clients" if self.unit == "user" else "sites"),
        )

    def check_unit(self, unit: Unit) -> None:
        """Fail unless this unit is what the contract protects.

        Its cost means nothing for another: one record moves a client's update by as much as all.
        """
        if self.unit != unit:
            clips = "the gradient of each record" if unit == "record" else "a client's whole update"
            fail("contract", f'one of unit="{unit}", where {clips} is clipped', self.unit)

    def site_of(self, public_key: bytes) -> int:
        """Return the number of the site with this public key.

        Raises
        ------
        ValueError
            If there is none.
        """
        if public_key not in self.site_keys:
            fail("site", "the public key of a site of the contract", public_key.hex())
        return self.site_keys.index(public_key)
