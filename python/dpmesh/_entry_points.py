"""Entry points of the distribution dpmesh: commands and classes that other packages of it add.

The package `dpmesh_papers` is in the same distribution, and `dpmesh` does not import it. Its
commands, and the classes that it adds to experiment files, are found by their entry points when
they are needed. Entry points of other distributions are not read. Contracts between parties use no
entry points.
"""

from __future__ import annotations

from importlib import metadata

COMMANDS = "dpmesh.commands"
"""Group of entry points that are commands."""

KINDS = "dpmesh.kinds"
"""Group of entry points that are classes for experiment files."""


def loaded(group: str, name: str) -> object:
    """Return the object of an entry point of the distribution; None if there is no such entry."""
    for entry in _entry_points(group):
        if entry.name == name:
            return entry.load()
    return None


def all_loaded(group: str) -> dict[str, object]:
    """Return the objects of all entry points of a group, by name."""
    return {entry.name: entry.load() for entry in _entry_points(group)}


def _entry_points(group: str) -> list[metadata.EntryPoint]:
    """Return the entry points of a group; none if the package is not installed."""
    try:
        distribution = metadata.distribution("dpmesh")
    except metadata.PackageNotFoundError:
        return []
    return [entry for entry in distribution.entry_points if entry.group == group]
