"""Three unbiased compressors at one epsilon: what a message weighs, and what it costs in accuracy.

Ten nodes, each with 2,000 records of synthetic data, learn a linear classifier by private gossip.
The noise, and with it the privacy, is the same for all: compression comes after it. Writes
comparing_compressors.png.
"""

from __future__ import annotations

from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np

import dpmesh as dm
from dpmesh.noise import Levels, Quantizer, RandomSparsifier
from dpmesh.schedules import HorizonPower, PowerLaw, SampleSize

NODES, RECORDS, ROUNDS, DELTA = 10, 2_000, 100, 1e-6

key = dm.Key.generate()
draw = dm.keys.generator(key, dm.keys.Purpose.SPLIT)
truth = draw.normal(size=50)
x = draw.normal(size=(NODES * RECORDS, len(truth)))
y = np.where(x @ truth + draw.normal(size=len(x)) > 0, 1, -1)
records = dm.data.unit_norm(dm.Dataset(x, y, "synthetic"))
train, test = dm.data.train_test_split(records, 0.2, draw)
problem = dm.LinearProblem(
    train, dm.data.iid(train, NODES, draw), "logistic", test=test, feature_norm=1.0
)

plain = dm.QuantizedGossip(
    step_size=HorizonPower(scale=4.0, exponent=-0.6, rounds=ROUNDS),
    consensus_step_size=HorizonPower(scale=1.0, exponent=-0.4, rounds=ROUNDS),
    sample_size=SampleSize(scale=20.0, exponent=0.9, rounds=ROUNDS),
    noise_std=PowerLaw(scale=1.0, exponent=0.05),
    compressor=None,
    mode="safe",
    smoothness=0.25,
)
budget = dm.privacy.Budget(epsilon=2.0, delta=DELTA)
noise = budget.calibrate(
    lambda std: replace(plain, noise_std=PowerLaw(scale=std, exponent=0.05)), ROUNDS
)
plain = replace(plain, noise_std=PowerLaw(scale=noise, exponent=0.05))

plt.rc("axes", prop_cycle=plt.cycler(color=dm.plots.COLOURS))
figure, ax = plt.subplots(figsize=(5, 3.5), layout="constrained")
topology = dm.topology.random_regular(NODES, 4, key=key)
compressors = {
    "none": None,
    "quantizer, step 0.2": Quantizer(0.2),
    "4 levels (QSGD)": Levels(4),
    "one in four (sparse)": RandomSparsifier(0.25),
}
for i, (name, compressor) in enumerate(compressors.items()):
    algorithm = replace(plain, compressor=compressor)
    run = dm.simulate(algorithm, problem, topology, rounds=ROUNDS, budget=budget)
    bits = run.traffic.bits / run.traffic.messages
    accuracy = run.history.last("accuracy")
    print(f"{name:<22} {bits:>7.0f} bits a message, accuracy {accuracy:.3f}, {budget}")
    ax.plot(bits / problem.dim, accuracy, "os^D"[i], label=name, markersize=8)
ax.set_xscale("log")
ax.set_xticks([3, 10, 30, 64], ["3", "10", "30", "64"])
ax.minorticks_off()  # their labels would overlap
ax.set_xlabel("bits for each parameter")
ax.set_ylabel(f"test accuracy at epsilon {budget.epsilon:g}")
ax.legend(frameon=False)
figure.savefig("comparing_compressors.png", dpi=150)
