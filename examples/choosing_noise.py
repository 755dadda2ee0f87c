"""How much noise a budget needs, and how many rounds it allows: no data, no run.

For federated learning of 1,000 clients: the noise over the number of rounds for three budgets.
Writes choosing_noise.png.
"""

from __future__ import annotations

import matplotlib.pyplot as plt

import dpmesh as dm

ROUNDS = (10, 30, 100, 300, 1000)


def learning(noise_multiplier: float) -> dm.FederatedLearning:
    return dm.FederatedLearning(
        dm.ClientUpdates(clients=1000, sampling_rate=0.05, clipping_norm=0.3, epochs=5),
        noise_multiplier=noise_multiplier,
    )


plt.rc("axes", prop_cycle=plt.cycler(color=dm.plots.COLOURS))
figure, ax = plt.subplots(figsize=(5, 3.5), layout="constrained")
for epsilon in (1.0, 2.0, 8.0):
    budget = dm.privacy.Budget(epsilon, delta=1e-5)
    noises = [budget.calibrate(learning, rounds) for rounds in ROUNDS]
    affordable = budget.affordable_rounds(learning(1.0))
    needed = dm.privacy.rounded_up(noises[2], 4)  # rounded up, noise still keeps the budget
    print(f"{budget}: at noise 1 it allows {affordable} rounds; 100 rounds need {needed}")
    ax.semilogx(ROUNDS, noises, marker="o", label=f"epsilon {epsilon:g}")
ax.set_xlabel("rounds")
ax.set_ylabel("noise multiplier")
ax.grid(alpha=0.3)
ax.legend(frameon=False)
figure.savefig("choosing_noise.png", dpi=150)
