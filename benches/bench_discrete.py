"""Noise on the integers against OpenDP, numpy's geometric draws (insecure) and plain Python.

In numpy a discrete Laplace variable is the difference of two geometric ones; there is no discrete
Gaussian. The plain Python is the rejection sampler of Canonne, Kamath and Steinke with `random`'s
floats: not exact, but as short as possible. OpenDP is exact.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import numpy as np

from benches.measure import Case, Way, skipped
from dpmesh import kernels
from dpmesh.keys import Key

SHAPES = [(64, 10), (16, 600), (1, 1_000_000)]
PLAIN = 200
"""Numbers that plain Python and OpenDP draw: they take long."""
GENERATOR = np.random.Generator(np.random.SFC64(1))


def plain_laplace(scale: float) -> int:
    """Return a discrete Laplace variable: the difference of two geometric ones."""
    log_of_failure = -1 / scale
    first, second = (int(math.log(random.random()) / log_of_failure) for _ in range(2))
    return first - second


def plain_gaussian(scale: float) -> int:
    """Return a discrete Gaussian variable, by rejection of discrete Laplace ones."""
    while True:
        candidate = plain_laplace(scale)
        if random.random() < math.exp(-((abs(candidate) - scale) ** 2) / (2 * scale**2)):
            return candidate


PLAIN_LAWS = {"laplace": plain_laplace, "gaussian": plain_gaussian}
KERNELS = {"laplace": kernels.discrete_laplace, "gaussian": kernels.discrete_gaussian}


def numpy_laplace(scale: float, shape: tuple[int, int]) -> np.ndarray:
    """Return discrete Laplace variables as differences of geometric ones."""
    success = -math.expm1(-1 / scale)
    return GENERATOR.geometric(success, shape) - GENERATOR.geometric(success, shape)


def opendp(law: str, scale: float) -> Way:
    """Return OpenDP's way to add noise to `PLAIN` zeros."""
    import opendp.prelude as dp

    dp.enable_features("contrib")
    domain = dp.vector_domain(dp.atom_domain(T="i32"))
    if law == "laplace":
        measurement = dp.m.make_laplace(domain, dp.l1_distance(T="i32"), scale=scale)
    else:
        measurement = dp.m.make_gaussian(domain, dp.l2_distance(T="i32"), scale=scale)
    zeros = [0] * PLAIN
    return lambda: measurement(zeros)


def case(law: str, scale: float, shape: tuple[int, int], cipher: str, *, with_opendp: bool) -> Case:
    """Return draws of a shape, beside `PLAIN` draws of plain Python and of OpenDP."""
    plain = PLAIN_LAWS[law]
    draw = KERNELS[law]
    stream = Key.generate(cipher)
    out = np.empty(shape, dtype=np.int64)
    size = out.size
    peers: dict[str, Way] = {"plain": lambda: [plain(scale) for _ in range(PLAIN)]}
    if with_opendp:
        peers["opendp"] = opendp(law, scale)
    if law == "laplace":
        peers["numpy"] = lambda: numpy_laplace(scale, shape)
    return Case(
        f"discrete {law} {scale:g}, {shape[0]} x {shape[1]}, {cipher}",
        lambda: draw(shape, scale, stream.stream(1), out=out),
        peers=peers,
        part={"plain": PLAIN / size, "opendp": PLAIN / size},
        goals={"opendp": 1000.0} if size > 10_000 else {},
        values=size,
    )


def cases() -> Iterator[Case]:
    with_opendp = not skipped("opendp")
    for law in PLAIN_LAWS:
        for scale in (1.5, 100.0, 1e5):
            for shape in SHAPES:
                for cipher in ("aes", "chacha20"):
                    yield case(law, scale, shape, cipher, with_opendp=with_opendp)
