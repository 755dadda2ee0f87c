"""Auditing a mechanism of your own: what it claims, and what an audit can show.

Gaussian noise on a value between 0 and 1, and the same with half the noise that it claims. An audit
never proves a claim; it refutes a false one. Writes auditing.png.
"""

from __future__ import annotations

import matplotlib.pyplot as plt

from dpmesh import kernels, plots
from dpmesh.audit import audit_mechanism
from dpmesh.noise import Gaussian, Sensitivity

SENSITIVITY = Sensitivity(1.0, "l2", "values between 0 and 1")
MULTIPLIERS = (1.0, 2.0, 4.0)


class HalfTheNoise(Gaussian):
    """Claims one noise scale and draws another."""

    def _add_noise(self, values, scale, source):
        return kernels.add_noise("gaussian", values, scale / 2, source.stream)


plt.rc("axes", prop_cycle=plt.cycler(color=plots.COLOURS))
figure, ax = plt.subplots(figsize=(5, 3.5), layout="constrained")
for mechanism in (Gaussian, HalfTheNoise):
    results = [
        audit_mechanism(mechanism(z), SENSITIVITY, delta=1e-5, confidence=0.999)
        for z in MULTIPLIERS
    ]
    for z, result in zip(MULTIPLIERS, results, strict=True):
        print(f"{mechanism.__name__:<14} multiplier {z}: violated = {result.violated}\n{result}\n")
    ax.plot(
        MULTIPLIERS, [r.lower_bound for r in results], "o-", label=f"measured: {mechanism.__name__}"
    )
ax.plot(MULTIPLIERS, [r.claim.level for r in results], "k--", label="claimed")
ax.set_xlabel("noise multiplier")
ax.set_ylabel("mu of Gaussian differential privacy")
ax.legend(frameon=False)
figure.savefig("auditing.png", dpi=150)
