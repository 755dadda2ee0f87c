"""An algorithm's state at a node, as bytes."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np

from dpmesh.deploy.signing import pack, unpack
from dpmesh.run.codec import Arrays, classes_in, decode, encode


def state_as_bytes(state: Any) -> bytes:
    """Return an algorithm's state as bytes, the same for the same state."""
    arrays: Arrays = {}
    tree = json.dumps(encode(state, arrays)).encode()
    return pack(tree, *(part for name in arrays for part in (name.encode(), _saved(arrays[name]))))


def state_from_bytes(data: bytes, start: Any) -> Any:
    """Return the state, of the same classes as `start`."""
    tree, *parts = unpack(data)
    names, held = parts[::2], parts[1::2]
    arrays = {
        name.decode(): np.load(io.BytesIO(array), allow_pickle=False)
        for name, array in zip(names, held, strict=True)
    }
    return decode(json.loads(tree), arrays, classes_in(start))


def _saved(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()
