"""Noise added in place, against numpy's fastest generator (SFC64, insecure), which only draws."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, TypeAlias

import numpy as np

from benches.measure import Case, Way
from dpmesh import kernels
from dpmesh.keys import Key

Law: TypeAlias = Literal["gaussian", "laplace"]
LAWS: tuple[Law, ...] = ("gaussian", "laplace")
SHAPES = [(64, 10), (16, 600), (1, 8192), (1, 1_000_000)]
GOALS = {
    ("gaussian", "float32", "aes"): 8.0,
    ("gaussian", "float64", "aes"): 3.0,
    ("gaussian", "float32", "chacha20"): 4.0,
    ("gaussian", "float64", "chacha20"): 1.7,
    ("laplace", "float32", "aes"): 6.0,
    ("laplace", "float64", "aes"): 6.0,
}
GENERATOR = np.random.Generator(np.random.SFC64(1))


def numpy_draw(law: Law, x: np.ndarray) -> Way:
    """The draw alone. numpy lacks float32 Laplace draws: they are float64 ones."""
    if law == "laplace":
        return lambda: GENERATOR.laplace(size=x.shape)
    return lambda: GENERATOR.standard_normal(dtype=x.dtype, out=x)


def case(law: Law, dtype: type, shape: tuple[int, int], cipher: str) -> Case:
    stream = Key.generate(cipher).stream(1)
    x, drawn_noise, scaled = np.zeros((3, *shape), dtype=dtype)
    goals = {}
    goal = GOALS.get((law, dtype.__name__, cipher))
    if goal is not None and shape[1] > 8000:
        goals["numpy"] = goal
    return Case(
        f"{law} {dtype.__name__} {shape[0]} x {shape[1]}, {cipher}",
        lambda: kernels.add_noise(law, x, 1.5, stream, out=x),
        peers={"numpy": numpy_draw(law, drawn_noise)},
        limits={"scale": lambda: np.multiply(scaled, dtype(1), out=scaled)},
        goals=goals,
        values=x.size,
    )


def in_time(dtype: type, shape: tuple[int, int], bands: int) -> Case:
    """Return a row of noise of so many bands, beside a row of independent noise."""
    stream = Key.generate().stream(1)
    out = np.zeros(shape, dtype)
    earlier = list(np.ones((bands - 1, *shape), dtype))
    weights = [0.1] * (bands - 1)
    return Case(
        f"noise in time {dtype.__name__} {shape[0]} x {shape[1]}, {bands} bands",
        lambda: kernels.correlated_gaussian(shape, 1.5, earlier, weights, stream, out=out),
        peers={"independent": lambda: kernels.gaussian(shape, 1.5, stream, out=out)},
        goals={"independent": 1 / (bands + 1)},
        values=out.size,
    )


def between_partners(dtype: type, nodes: int, dim: int) -> Case:
    """Return noise that links of a ring of 4 neighbours share, beside one draw for each link."""
    stream = Key.generate().stream(1)
    x = np.zeros((nodes, dim), dtype)
    node_numbers = np.arange(nodes)
    links = []
    for distance in (1, 2):
        partners = (node_numbers + distance) % nodes
        links.append(np.stack([node_numbers, partners], axis=1))
    ends = np.concatenate(links)
    pairs = np.arange(len(ends), dtype=np.uint32)
    independent_noise = np.zeros((len(ends), dim), dtype)
    shape = independent_noise.shape
    return Case(
        f"noise of partners {dtype.__name__} {nodes} x {dim}, {len(ends)} links",
        lambda: kernels.add_pair_gaussian(x, pairs, ends, 1.5, stream),
        limits={"draws": lambda: kernels.gaussian(shape, 1.5, stream, out=independent_noise)},
        values=independent_noise.size,
    )


def cases() -> Iterator[Case]:
    for law in LAWS:
        for dtype in (np.float32, np.float64):
            for shape in SHAPES:
                for cipher in ("aes", "chacha20"):
                    yield case(law, dtype, shape, cipher)
    for dtype in (np.float32, np.float64):
        for bands in (4, 16):
            yield in_time(dtype, (16, 650), bands)
        yield between_partners(dtype, 16, 650)
