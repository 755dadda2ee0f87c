"""Private logistic regression by gossip: how the network matters.

Sixteen nodes hold some handwritten digits each, and learn to distinguish small digits from large
ones at epsilon 16, over a ring, a torus and a complete graph. Writes private_gossip.png.
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np

import dpmesh as dm

key = dm.Key.generate()
draw = dm.keys.generator(key, dm.keys.Purpose.SPLIT)
digits = dm.data.unit_norm(dm.data.digits())
large = digits.relabelled(lambda digit: np.where(digit >= 5, 1, -1))
train, test = dm.data.train_test_split(large, 0.25, draw)
parts = dm.data.iid(train, 16, draw, equal_sizes=True)
problem = dm.LinearProblem(train, parts, "logistic", test=test)

# Each record is used once; batches of five divide the noise by five.
algorithm = dm.OnlineLearning(
    epsilon=16.0, delta=1e-5, batch_size=5, radius=10.0, step_size=dm.schedules.InverseSqrt(4.0)
)
topologies = {
    "ring": dm.topology.ring(16),
    "torus": dm.topology.torus(4, 4),
    "complete": dm.topology.complete(16),
}
histories = {}
for name, topology in topologies.items():
    run = dm.simulate(algorithm, problem, topology, rounds=16, metrics=dm.Metrics(every=1))
    histories[f"{name}, gap {topology.matrix(0).spectral_gap:.2f}"] = run.history
    print(f"{name:<10} accuracy {run.history.last('accuracy'):.3f}  {run.traffic.megabytes:.2f} MB")
print(run.privacy)

figure, axes = plt.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
for ax, metric in zip(axes, ("accuracy", "consensus_distance"), strict=True):
    dm.plots.curves(histories, metric, ax=ax)
figure.savefig("private_gossip.png", dpi=150)
