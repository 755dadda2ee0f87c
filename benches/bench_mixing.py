"""Mixing against scipy's CSR product, that of a complete graph also against a dense product."""

from __future__ import annotations

from collections.abc import Iterator

import networkx as nx
import numpy as np
import scipy.sparse as sp

from benches.measure import THREADS, Case
from dpmesh import kernels

SHAPES = [
    ("4-regular", 64, 50),
    ("4-regular", 64, 10_000),
    ("4-regular", 64, 47_236),
    ("ring", 1_000, 50),
    ("ring", 1_000, 10_000),
    ("4-regular", 10_000, 50),
    ("4-regular", 10_000, 1_000),
    ("complete", 64, 1_000),
    ("complete", 200, 1_000),
]
MEGABYTE = 1 << 20


def matrix(graph: str, nodes: int) -> sp.csr_array:
    """Return equal weights for a node and its neighbours."""
    if graph == "complete":
        network = nx.complete_graph(nodes)
    elif graph == "ring":
        network = nx.cycle_graph(nodes)
    else:
        network = nx.random_regular_graph(4, nodes, seed=1)
    links = nx.to_scipy_sparse_array(network, format="csr") + sp.eye_array(nodes, format="csr")
    rows = sp.csr_array(links / links[[0]].sum()).astype(np.float32)
    for part in ("indptr", "indices"):  # in 32 bits, as of a `MixingMatrix`
        setattr(rows, part, getattr(rows, part).astype(np.int32))
    return rows


def case(graph: str, nodes: int, dim: int) -> Case:
    weights = matrix(graph, nodes)
    x = np.random.default_rng(0).standard_normal((nodes, dim), dtype=np.float32)
    out = np.empty_like(x)
    peers = {"scipy": lambda: weights @ x}
    if graph == "complete":
        full = weights.toarray()
        peers["numpy"] = lambda: np.matmul(full, x, out=out)
    goals = {"numpy": 0.9} if graph == "complete" else {}
    if x.nbytes > MEGABYTE:
        goals["scipy"] = 2.5 if THREADS == 1 else 6.0
        if graph == "ring":
            goals["copy"] = 0.8
    return Case(
        f"mix {graph} of {nodes}, float32 x {dim}",
        lambda: kernels.mix(weights, x, out=out),
        peers=peers,
        limits={
            "copy": lambda: np.copyto(out, x),
            "scale": lambda: np.multiply(x, np.float32(1), out=x),
        },
        goals=goals,
        values=x.size,
    )


def cases() -> Iterator[Case]:
    for shape in SHAPES:
        yield case(*shape)
