"""Releases of a round are put together as one process would have written them down."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from dpmesh.engines.releases import assembled
from dpmesh.privacy import Laplace, Release, Sensitivity

NODES = 7
ONE = Sensitivity(1.0, "l2", "a test")

node_sets = st.none() | st.sets(st.integers(0, NODES - 1), min_size=1).map(
    lambda nodes: tuple(sorted(nodes))
)
releases = st.lists(
    st.builds(
        lambda z, batch, nodes: Laplace(z).planned(0, ONE, batch, nodes=nodes),
        st.sampled_from([1.0, 2.0]),
        st.none() | st.just(3),
        node_sets,
    ),
    max_size=6,
)


def dealt(whole: list[Release], owner: list[int], ranks: int) -> list[list[Release]]:
    """What each rank writes down of these."""
    parts: list[list[Release]] = [[] for _ in range(ranks)]
    for release in whole:
        for rank, part in enumerate(parts):
            nodes = release.nodes and tuple(n for n in release.nodes if owner[n] == rank)
            if nodes or release.nodes is None:
                part.append(replace(release, nodes=nodes))
    return parts


owners = st.integers(1, 4).flatmap(
    lambda ranks: st.tuples(
        st.lists(st.integers(0, ranks - 1), min_size=NODES, max_size=NODES), st.just(ranks)
    )
)


@given(whole=releases, dealing=owners)
def test_what_was_planned_comes_back(whole: list[Release], dealing: tuple[list[int], int]) -> None:
    """Whatever the ranks; each kind of release once for each node."""
    kinds: dict[tuple, set[int]] = {}
    planned = []
    for release in whole:
        taken = kinds.setdefault((release.noise_multiplier, release.batch), set())
        nodes = set(range(NODES)) if release.nodes is None else set(release.nodes)
        if not taken & nodes:
            taken |= nodes
            planned.append(release)
    assert assembled(dealt(planned, *dealing), planned) == tuple(planned)


@given(whole=releases, dealing=owners)
def test_every_node_has_released_what_it_released(
    whole: list[Release], dealing: tuple[list[int], int]
) -> None:
    """With no plan to go by: as many releases of each kind, in whatever pieces."""

    def of_node(found: tuple[Release, ...] | list[Release], node: int) -> list[str]:
        return sorted(
            str((r.noise_multiplier, r.batch)) for r in found if r.nodes is None or node in r.nodes
        )

    together = assembled(dealt(whole, *dealing), [])
    for node in range(NODES):
        assert of_node(together, node) == of_node(whole, node)


def test_an_unplanned_release_of_all_ranks_is_one() -> None:
    whole = Laplace(3.0).planned(0, ONE, nodes=(1, 2, 5))
    assert assembled(dealt([whole], [0, 0, 1, 1, 1, 2, 2], 3), []) == (whole,)


def test_a_rank_that_names_no_nodes_released_from_all_of_its_own() -> None:
    """Others of its kind, that name theirs, are not all there is."""
    one = Laplace(3.0).planned(0, ONE, nodes=(5,))
    unnamed = replace(one, nodes=None)
    assert assembled([[unnamed], [one]], []) == (unnamed,)
    assert assembled([[unnamed], [one]], [one]) == (one, unnamed)
