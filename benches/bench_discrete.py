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
GENERATOR = np.random.Generator(np.random.SFC64(1))


def plain_laplace(scale: float) -> int:
    success = -math.expm1(-1 / scale)
    return int(math.log(random.random()) / math.log1p(-success)) - int(
        math.log(random.random()) / math.log1p(-success)
    )


def plain_gaussian(scale: float) -> int:
    while True:
        candidate = plain_laplace(scale)
        if random.random() < math.exp(-((abs(candidate) - scale) ** 2) / (2 * scale**2)):
            return candidate


PLAIN_LAWS = {"laplace": plain_laplace, "gaussian": plain_gaussian}


def numpy_laplace(scale: float, shape: tuple[int, int]) -> np.ndarray:
    success = -math.expm1(-1 / scale)
    return GENERATOR.geometric(success, shape) - GENERATOR.geometric(success, shape)


def opendp(law: str, scale: float) -> Way:
    import opendp.prelude as dp

    dp.enable_features("contrib")
    space = (
        dp.vector_domain(dp.atom_domain(T="i32")),
        (dp.l1_distance(T="i32") if law == "laplace" else dp.l2_distance(T="i32")),
    )
    make = dp.m.make_laplace if law == "laplace" else dp.m.make_gaussian
    measurement, zeros = make(*space, scale=scale), [0] * PLAIN
    return lambda: measurement(zeros)


def case(law: str, scale: float, shape: tuple[int, int], cipher: str, *, with_opendp: bool) -> Case:
    draw, plain, stream = getattr(kernels, f"discrete_{law}"), PLAIN_LAWS[law], Key.generate(cipher)
    out, size = np.empty(shape, dtype=np.int64), shape[0] * shape[1]
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
