"""One deep-Q step of many small networks against batched numpy and torch.

A step of each network: gather 10 of 20 stored transitions, the target network's values, squared
temporal-difference error, gradient, Adam. The limit: scaling parameters and moments in place. torch
is compared if installed, with its ordinary and its fused Adam.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benches.measure import THREADS, Case, Way, skipped
from dpmesh.keys import Key, Purpose
from dpmesh_papers.qnet import QReplay, QTrained, q_init, q_learn, q_weights

INPUTS, HIDDEN, CAPACITY, BATCH = 52, 128, 20, 10


def problem(networks: int) -> tuple[np.ndarray, np.ndarray, QReplay, np.ndarray]:
    """Parameters, target parameters, memory and picks."""
    rng = np.random.default_rng(0)
    stream = Key.seeded(1).stream(Purpose.CONTROLLER)
    parameters = q_init(2 * networks, INPUTS, stream, hidden=HIDDEN)
    shape = (networks, CAPACITY)
    replay = QReplay(
        states=rng.standard_normal((*shape, 2, INPUTS), dtype=np.float32),
        actions=rng.integers(0, 2, shape).astype(np.uint8),
        rewards=rng.standard_normal(shape, dtype=np.float32),
        discounts=np.full(shape, 0.9, dtype=np.float32),
    )
    picks = np.argsort(rng.random(shape), axis=1)[:, :BATCH]
    return parameters[:networks].copy(), parameters[networks:].copy(), replay, picks


def ours(parameters: np.ndarray, target: np.ndarray, replay: QReplay, picks: np.ndarray) -> Way:
    trained = QTrained(
        parameters.copy(),
        np.zeros_like(parameters),
        np.zeros_like(parameters),
        np.zeros(len(parameters), dtype=np.uint32),
    )
    return lambda: q_learn(trained, target, replay, picks, activation="relu")


def matrices(parameters: np.ndarray) -> list[np.ndarray]:
    """Weights for batched matrix products: (inputs, hidden) and (hidden, 2)."""
    w = q_weights(parameters, INPUTS)
    return [
        np.swapaxes(w.hidden_weights, 1, 2).copy(),
        w.hidden_biases[:, None].copy(),
        np.swapaxes(w.value_weights, 1, 2).copy(),
        w.value_biases[:, None].copy(),
    ]


def batched_numpy(
    parameters: np.ndarray, target: np.ndarray, replay: QReplay, picks: np.ndarray
) -> Way:
    weights = matrices(parameters)
    targets = matrices(target)
    moments = [(np.zeros_like(w), np.zeros_like(w)) for w in weights]
    nodes = np.arange(len(parameters))[:, None]
    batch_places = np.arange(BATCH)[None]
    t = 0

    def forward(p: list[np.ndarray], x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        hidden = np.maximum(x @ p[0] + p[1], 0)
        return hidden, hidden @ p[2] + p[3]

    def gradients_of_batch() -> list[np.ndarray]:
        pairs = replay.states[nodes, picks]
        x = pairs[:, :, 0]
        next_x = pairs[:, :, 1]
        actions = replay.actions[nodes, picks]
        best = forward(targets, next_x)[1].max(axis=2)
        y = replay.rewards[nodes, picks] + replay.discounts[nodes, picks] * best
        hidden, values = forward(weights, x)
        chosen = (nodes, batch_places, actions)
        slopes = np.zeros_like(values)
        slopes[chosen] = np.float32(2 / BATCH) * (values[chosen] - y)
        hidden_slopes = (slopes @ weights[2].swapaxes(1, 2)) * (hidden > 0)
        return [
            x.swapaxes(1, 2) @ hidden_slopes,
            hidden_slopes.sum(axis=1, keepdims=True),
            hidden.swapaxes(1, 2) @ slopes,
            slopes.sum(axis=1, keepdims=True),
        ]

    def step() -> None:
        nonlocal t
        t += 1
        gradients = gradients_of_batch()
        rate = np.float32(0.01 / (1 - 0.9**t))
        scale = np.float32((1 - 0.999**t) ** -0.5)
        for w, (m, v), g in zip(weights, moments, gradients, strict=True):
            m *= np.float32(0.9)
            m += np.float32(0.1) * g
            v *= np.float32(0.999)
            v += np.float32(0.001) * g * g
            w -= rate * m / (scale * np.sqrt(v) + np.float32(1e-8))

    return step


def batched_torch(
    parameters: np.ndarray, target: np.ndarray, replay: QReplay, picks: np.ndarray, *, fused: bool
) -> Way:
    import torch

    torch.set_num_threads(THREADS)
    weights = [torch.from_numpy(w).requires_grad_() for w in matrices(parameters)]
    targets = [torch.from_numpy(w) for w in matrices(target)]
    states, actions, rewards, discounts = (torch.from_numpy(a) for a in replay)
    places = torch.from_numpy(picks)
    nodes = torch.arange(len(parameters))[:, None]
    optimizer = torch.optim.Adam(weights, lr=0.01, fused=fused)

    def values(p: list[torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(torch.baddbmm(p[1], x, p[0]))
        return torch.baddbmm(p[3], hidden, p[2])

    def step() -> None:
        pairs = states[nodes, places]
        chosen_actions = actions.gather(1, places).long()[..., None]
        with torch.no_grad():
            best = values(targets, pairs[:, :, 1]).amax(-1)
            y = rewards.gather(1, places) + discounts.gather(1, places) * best
        errors = values(weights, pairs[:, :, 0]).gather(2, chosen_actions)[..., 0] - y
        optimizer.zero_grad()
        (errors * errors).mean(1).sum().backward()
        optimizer.step()

    return step


def scale(parameters: np.ndarray) -> Way:
    arrays = [parameters.copy() for _ in range(3)]
    return lambda: [np.multiply(a, np.float32(1), out=a) for a in arrays]


def cases() -> Iterator[Case]:
    with_torch = not skipped("torch")
    for networks in (20, 200, 2_000):
        setting = problem(networks)
        peers = {"numpy": batched_numpy(*setting)}
        goals = {}
        if with_torch:
            peers["torch"] = batched_torch(*setting, fused=False)
            peers["torch fused"] = batched_torch(*setting, fused=True)
            if networks == 200:
                goals = {"torch": 3.0, "torch fused": 3.0}
        yield Case(
            f"deep-Q step of {networks} networks",
            ours(*setting),
            peers=peers,
            limits={"scale": scale(setting[0])},
            goals=goals,
        )
