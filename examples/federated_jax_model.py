"""DP-Fed-LS with a JAX model of your own: a small network on handwritten digits.

A hundred clients, a tenth of them in each round, with and without Laplacian smoothing of each
tensor, at the noise that epsilon 8 needs. Writes federated_jax_model.png. Needs the extra jax.
"""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt

import dpmesh as dm

ROUNDS, DELTA = 30, 1e-3


def start(key):
    return {"hidden": 0.2 * jax.random.normal(key, (64, 32)), "out": jnp.zeros((32, 10))}


def scores(params, pixels):
    return jnp.tanh(pixels @ params["hidden"]) @ params["out"]


def loss(params, pixels, digit):
    return -jax.nn.log_softmax(scores(params, pixels))[digit]


key = dm.Key.generate()
draw = dm.keys.generator(key, dm.keys.Purpose.SPLIT)
train, test = dm.data.train_test_split(dm.data.unit_norm(dm.data.digits()), 0.2, draw)
parts = dm.data.iid(train, 100, draw)
problem = dm.problems.JaxProblem(train, parts, start=start, loss=loss, scores=scores, test=test)

plain = dm.FederatedLearning(
    dm.ClientUpdates(
        clients=100, sampling_rate=0.1, clipping_norm=1.0, epochs=3, batch_size=4, step_size=1.0
    ),
    noise_multiplier=1.0,
)
budget = dm.privacy.Budget(epsilon=8.0, delta=DELTA)
noise = budget.calibrate(lambda z: replace(plain, noise_multiplier=z), rounds=ROUNDS)
print(f"noise multiplier {dm.privacy.rounded_up(noise, 4)} for {budget}")

plain = replace(plain, noise_multiplier=noise)
smoothing = dm.algorithms.denoisers.LaplacianSmoothing(0.5, blocks=problem.blocks)
histories = {}
for name, algorithm in {
    "not private": replace(plain, noise_multiplier=None),
    "no smoothing": plain,
    "smoothing 0.5": replace(plain, denoiser=smoothing),
}.items():
    run = dm.simulate(algorithm, problem, rounds=ROUNDS, delta=DELTA, metrics=dm.Metrics(every=3))
    histories[name] = run.history
    print(f"{name:<14} accuracy {run.history.last('accuracy'):.3f}")

ax = dm.plots.curves(histories, "accuracy")
plt.gcf().savefig("federated_jax_model.png", dpi=150)
