"""Cells of columns, one by one or together."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpmesh.tables.cells import map_cells, name_of

EDGES = [-(2**63), -1, 0, 1, 2**63 - 1]


@pytest.mark.parametrize("dtype", [np.int8, np.int64, np.uint64])
@given(draw=st.data())
def test_whole_numbers_parse_as_one_by_one(dtype: type[np.integer], draw: st.DataObject) -> None:
    limits = np.iinfo(dtype)
    edges = [number for number in EDGES if limits.min <= number <= limits.max]
    few = st.sampled_from(edges) | st.integers(int(limits.min), int(limits.max))
    cells = np.array(draw.draw(st.lists(few, max_size=30)), dtype)
    one_by_one = [name_of(cell) for cell in cells]
    assert map_cells(name_of, cells, object).tolist() == one_by_one
    assert map_cells(lambda cell: cell % 7 == 0, cells, bool).tolist() == [
        int(cell) % 7 == 0 for cell in cells
    ]
