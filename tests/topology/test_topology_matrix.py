"""Mixing matrices: what is accepted, what they say about themselves, their spectra."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refused import refused
from scipy import sparse

from dpmesh import topology
from dpmesh.topology import MixingMatrix
from dpmesh.topology.graphs import weigh

DIRECTED = np.array([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.5, 0.0, 0.5]])


@st.composite
def graphs(draw: st.DrawFn, *, most: int = 12) -> nx.Graph:
    """Any simple graph, connected or not."""
    nodes = draw(st.integers(1, most))
    pairs = [(i, j) for i in range(nodes) for j in range(i)]
    graph = nx.empty_graph(nodes)
    graph.add_edges_from(pair for pair in pairs if draw(st.booleans()))
    return graph


@st.composite
def doubly_stochastic(draw: st.DrawFn) -> np.ndarray:
    """A mean of random permutation matrices: any of these is one (Birkhoff)."""
    nodes, count = draw(st.integers(1, 8)), draw(st.integers(1, 4))
    orders = [draw(st.permutations(range(nodes))) for _ in range(count)]
    return np.mean([np.eye(nodes)[list(order)] for order in orders], axis=0)


def linked(graph: nx.Graph) -> sparse.csr_array:
    return nx.to_scipy_sparse_array(graph, weight=None)


@given(graphs())
def test_metropolis_weights_are_the_formula(graph: nx.Graph) -> None:
    expected = np.zeros((len(graph), len(graph)))
    for i, j in graph.edges:
        expected[i, j] = expected[j, i] = 1 / (1 + max(graph.degree[i], graph.degree[j]))
    np.fill_diagonal(expected, 1 - expected.sum(axis=1))
    matrix = weigh(linked(graph), "metropolis")
    np.testing.assert_allclose(matrix.weights.toarray(), expected, rtol=1e-14)


@given(graphs())
def test_max_degree_weights_are_the_formula(graph: nx.Graph) -> None:
    degrees = [degree for _, degree in graph.degree]
    laplacian = nx.laplacian_matrix(graph).toarray()
    matrix = weigh(linked(graph), "max_degree")
    expected = np.eye(len(graph)) - laplacian / (1 + max(degrees))
    np.testing.assert_allclose(matrix.weights.toarray(), expected, rtol=1e-14, atol=1e-16)
    np.testing.assert_array_equal(matrix.degrees, degrees)
    np.testing.assert_array_equal(matrix.listeners, degrees)
    assert matrix.messages == 2 * graph.number_of_edges()
    assert matrix.components == nx.number_connected_components(graph)
    for node in graph:
        np.testing.assert_array_equal(matrix.neighbours(node), sorted(graph[node]))
    np.testing.assert_array_equal(
        matrix.edges, sorted(map(sorted, graph.edges)) or np.empty((0, 2))
    )


@pytest.mark.parametrize("degree", [0, 2, 3, 7, 10])
def test_equal_weights_share_among_neighbours_alone(degree: int) -> None:
    graph = nx.random_regular_graph(degree, 22, seed=1)
    matrix = weigh(linked(graph), "equal")
    expected = nx.to_numpy_array(graph) / degree if degree else np.eye(22)
    np.testing.assert_array_equal(matrix.weights.toarray(), expected)
    assert matrix.smallest_weight == 1 / max(degree, 1)


@given(doubly_stochastic())
def test_spectral_gap_equals_numpy(a: np.ndarray) -> None:
    matrix = MixingMatrix(a)
    singular = np.linalg.svd(a, compute_uv=False)
    # Where the matrix is not symmetric the gap comes from A^T A: rounding in a square, hence 1e-7.
    second = singular[1] if len(a) > 1 else 0.0
    tolerance = 1e-12 if matrix.is_symmetric else 1e-7
    assert matrix.spectral_gap == pytest.approx(1 - second, abs=tolerance)


@given(graphs())
def test_laplacian_eigenvalues_equal_numpy(graph: nx.Graph) -> None:
    matrix = weigh(linked(graph))
    values = np.linalg.eigvalsh(np.eye(len(graph)) - matrix.weights.toarray())
    low, high = (values[1], values[-1]) if len(graph) > 1 else (1.0, 1.0)
    assert matrix.algebraic_connectivity == pytest.approx(low, abs=1e-12)
    assert matrix.largest_laplacian_eigenvalue == pytest.approx(high, abs=1e-12)


def test_the_quantized_papers_ring() -> None:
    matrix = topology.ring(5, weights="equal").matrix(0)  # oracle O11
    assert matrix.algebraic_connectivity == pytest.approx(0.6909830056, abs=5e-11)
    assert matrix.largest_laplacian_eigenvalue == pytest.approx(1.809016994, abs=5e-10)


def test_large_graphs_agree_with_dense_solutions(monkeypatch: pytest.MonkeyPatch) -> None:
    bipartite = nx.complete_bipartite_graph(50, 50)
    many = [
        weigh(linked(nx.random_regular_graph(3, 150, seed=1))),
        weigh(linked(nx.barabasi_albert_graph(120, 2, seed=1))),
        weigh(linked(bipartite), "equal"),
        weigh(linked(bipartite)),
    ]
    dense = [(m.algebraic_connectivity, m.largest_laplacian_eigenvalue) for m in many]
    monkeypatch.setattr("dpmesh.topology.matrix.DENSE_NODES", 2)
    for matrix, expected in zip(many, dense, strict=True):
        again = MixingMatrix(matrix.weights)
        found = (again.algebraic_connectivity, again.largest_laplacian_eigenvalue)
        assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("nodes", [5000, 5001])
def test_a_long_ring_defeats_lanczos_but_not_us(nodes: int) -> None:
    matrix = topology.ring(nodes).matrix(0)  # eigenvalues of I - A: (4/3) sin^2(pi k / nodes)
    low = 4 / 3 * np.sin(np.pi / nodes) ** 2
    high = 4 / 3 * np.sin(np.pi * (nodes // 2) / nodes) ** 2
    assert matrix.algebraic_connectivity == pytest.approx(low, rel=1e-4)
    assert matrix.largest_laplacian_eigenvalue == pytest.approx(high, rel=1e-4)
    assert matrix.spectral_gap == pytest.approx(low, rel=1e-4)


def test_a_matrix_that_is_not_symmetric() -> None:
    matrix = MixingMatrix(DIRECTED)
    assert not matrix.is_symmetric
    assert matrix.spectral_gap == pytest.approx(0.5, abs=1e-12)
    np.testing.assert_array_equal(matrix.neighbours(2), [0])
    for ask in ("algebraic_connectivity", "largest_laplacian_eigenvalue", "edges"):
        with pytest.raises(ValueError, match=r"weights: wanted a symmetric .*0\.5 at \[0, 1\]"):
            getattr(matrix, ask)


@given(graphs(), st.data())
def test_edges_that_are_down_leave_their_weight_at_home(
    graph: nx.Graph, data: st.DataObject
) -> None:
    matrix = weigh(linked(graph))
    count = len(matrix.edges)
    kept = np.array(data.draw(st.lists(st.booleans(), min_size=count, max_size=count)), dtype=bool)
    expected = matrix.weights.toarray()
    for i, j in matrix.edges[~kept]:
        weight = expected[i, j]
        expected[i, j] = expected[j, i] = 0
        expected[i, i] += weight
        expected[j, j] += weight
    after = matrix.keep_edges(kept)
    np.testing.assert_allclose(after.weights.toarray(), expected, rtol=1e-14)
    assert after.is_symmetric
    assert after.messages == 2 * kept.sum()


def test_the_matrix_is_a_canonical_read_only_copy() -> None:
    given = np.full((2, 2), 0.5, dtype=np.float32)
    entries = sparse.coo_array(
        ([0.25, 0.5, 0.25, 0.5, 0.5, 0.0], ([0] * 3 + [1] * 3, [1, 0, 1, 1, 0, 0]))
    )
    for matrix in (MixingMatrix(given), MixingMatrix(entries)):
        weights = matrix.weights
        assert weights.dtype == np.float64
        assert weights.nnz == 4
        assert weights.has_canonical_format
        for array in (weights.data, weights.indices, weights.indptr):
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 0
        np.testing.assert_array_equal(weights @ np.ones((2, 3)), np.ones((2, 3)))
    given[0, 0] = 7  # the caller's own array stays writeable


test_bad_input_is_named = refused(
    (lambda: MixingMatrix(np.ones((2, 3))), r"weights: wanted a square matrix .* \(2, 3\)"),
    (lambda: MixingMatrix(np.ones(3)), r"weights: wanted a square matrix .* shape \(3,\)"),
    (lambda: MixingMatrix(np.ones((0, 0))), r"weights: wanted a square matrix .* \(0, 0\)"),
    (lambda: MixingMatrix([["a"]]), "weights: wanted real numbers, got dtype"),
    (lambda: MixingMatrix(np.eye(2) * 1j), "weights: wanted real numbers, got dtype complex"),
    (lambda: MixingMatrix(sparse.eye_array(2) * 1j), "weights: wanted real numbers"),
    (
        lambda: MixingMatrix(sparse.csr_array(([1, 1], [1, 2], [0, 1, 2]), shape=(2, 2))),
        "weights: wanted a sparse matrix whose arrays fit together, .* indices must be < 2",
    ),
    (
        lambda: MixingMatrix([[1, 0], [np.nan, 1]]),
        r"weights: wanted numbers that are finite, got nan at \[1, 0\]",
    ),
    (
        lambda: MixingMatrix([[1, np.inf], [0, 1]]),
        r"weights: wanted numbers that are finite, got inf at \[0, 1\]",
    ),
    (
        lambda: MixingMatrix([[1.0, 0.0, 0.0], [0.0, 1.5, -0.5], [0.0, -0.5, 1.5]]),
        r"weights: wanted numbers that are at least 0, got -0\.5 at \[1, 2\]",
    ),
    (
        lambda: MixingMatrix([[0.5, 0.5], [0.5, 0.4]]),
        r"weights: wanted rows that sum to 1 within 1e-09, got row 1 sums to 0\.9",
    ),
    (
        lambda: MixingMatrix([[0.5, 0.5], [1.0, 0.0]]),
        r"columns that sum to 1 .*, got column 0 sums to 1\.5, column 1 sums to 0\.5",
    ),
    (lambda: MixingMatrix(2 * np.eye(5)), r"row 2 sums to 2\.0 and 2 more"),
    (
        lambda: MixingMatrix(np.full((2, 2), 0.5)).keep_edges([True, False]),
        r"kept: wanted truth values of shape \(1,\), got bool of shape \(2,\)",
    ),
    (lambda: MixingMatrix(np.full((2, 2), 0.5)).keep_edges([1]), "kept: wanted truth values"),
    (lambda: MixingMatrix(DIRECTED).keep_edges([]), "weights: wanted a symmetric matrix"),
    (lambda: weigh(linked(nx.path_graph(3)), "equal"), "weights: .* 'equal' for degrees from 1"),
    (lambda: weigh(linked(nx.path_graph(3)), "x"), "weights: wanted one of 'metropolis', "),
)


def test_of_a_directed_graph_listeners_are_not_degrees() -> None:
    matrix = MixingMatrix(np.array([[0.0, 0.5, 0.5], [0.0, 0.5, 0.5], [1.0, 0.0, 0.0]]))
    assert matrix.degrees.tolist() == [2, 1, 1]
    assert matrix.listeners.tolist() == [1, 1, 2]
