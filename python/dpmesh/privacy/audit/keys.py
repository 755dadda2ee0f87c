"""Keys for the runs of an audit."""

from __future__ import annotations

from collections.abc import Iterator

from dpmesh.keys import Key, Purpose, generator


def fresh_keys(key: Key | None) -> Iterator[Key]:
    """Yield keys for the runs of an audit, which release nothing; by default from a new one."""
    draws = generator(Key.generate() if key is None else key, Purpose.AUDIT)
    while True:
        yield Key.seeded(int.from_bytes(draws.bytes(32), "little"))
