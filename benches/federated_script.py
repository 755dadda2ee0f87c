"""A user's script of federated learning on MNIST, for its whole time from import to result."""

import numpy as np

import dpmesh as dm

train, test = dm.data.mnist("train"), dm.data.mnist("test")
parts = dm.data.iid(train, 1200, np.random.default_rng(0))[:1000]  # of 50 records each
problem = dm.LinearProblem(train, parts, "softmax", test=test, classes=10)
algorithm = dm.FederatedLearning(
    dm.ClientUpdates(
        clients=1000,
        sampling_rate=0.05,
        clipping_norm=0.3,
        sampling="uniform",
        batch_size=10,
        epochs=5,
    ),
    noise_multiplier=1.6,
)
run = dm.simulate(algorithm, problem, rounds=30, delta=1e-5, metrics=dm.Metrics(progress=False))
print(run.privacy)
print("accuracy", run.history.last("accuracy"))
