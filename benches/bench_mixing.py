"""Mixing against scipy's CSR product, beside the limit: a plain copy of x, and scaling x in place.

Usage: ``python benches/bench_mixing.py [threads]``
"""

from __future__ import annotations

import statistics

from pairs import ratio, threads_from_command_line, times

THREADS = threads_from_command_line()

import networkx as nx  # noqa: E402
import numpy as np  # noqa: E402
import scipy.sparse as sp  # noqa: E402

from dpmesh import kernels  # noqa: E402

CASES = [
    ("4-regular", 64, 50),
    ("4-regular", 64, 10_000),
    ("4-regular", 64, 47_236),
    ("ring", 1_000, 50),
    ("ring", 1_000, 10_000),
    ("4-regular", 10_000, 50),
    ("4-regular", 10_000, 1_000),
]


def matrix(graph: str, nodes: int) -> sp.csr_array:
    """Equal weights for a node and its neighbours."""
    network = (
        nx.cycle_graph(nodes) if graph == "ring" else nx.random_regular_graph(4, nodes, seed=1)
    )
    links = nx.to_scipy_sparse_array(network, format="csr") + sp.eye_array(nodes, format="csr")
    return sp.csr_array(links / links[[0]].sum()).astype(np.float32)


print(f"{'graph':>10} {'nodes':>6} {'dim':>6} {'us':>9} {'scipy':>7} {'copy':>6} {'scale':>6}")
for graph, nodes, dim in CASES:
    weights = matrix(graph, nodes)
    x = np.random.default_rng(0).standard_normal((nodes, dim), dtype=np.float32)
    out = np.empty_like(x)
    ways = {
        "mix": lambda w=weights, x=x, out=out: kernels.mix(w, x, out=out),
        "scipy": lambda w=weights, x=x: w @ x,
        "copy": lambda x=x, out=out: np.copyto(out, x),
        "scale": lambda x=x: np.multiply(x, np.float32(1), out=x),
    }
    seconds = times(ways, THREADS)
    print(
        f"{graph:>10} {nodes:>6} {dim:>6} {statistics.median(seconds['mix']) * 1e6:>9.1f}"
        f" {ratio(seconds, 'scipy', 'mix'):>6.1f}x {ratio(seconds, 'copy', 'mix'):>6.0%}"
        f" {ratio(seconds, 'scale', 'mix'):>6.0%}"
    )
