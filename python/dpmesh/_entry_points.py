"""Entry points of the distribution dpmesh: commands and kinds that it adds to this package.

The papers' experiments are a package of their own in the same distribution. Nothing here imports
it: its commands, and the kinds that it adds to experiment files, are found when they are asked for.
Entry points of other distributions are not read, and contracts between parties read none.
"""

from __future__ import annotations

from importlib import metadata

COMMANDS = "dpmesh.commands"
"""The group of functions that are commands."""

KINDS = "dpmesh.kinds"
"""The group of classes that experiment files can name."""


def loaded(group: str, name: str) -> object:
    """Return what an entry point of the distribution names, or None if it has no such one."""
    for entry in _entry_points(group):
        if entry.name == name:
            return entry.load()
    return None


def all_loaded(group: str) -> dict[str, object]:
    """Return all that entry points of a group name, by name."""
    return {entry.name: entry.load() for entry in _entry_points(group)}


def _entry_points(group: str) -> list[metadata.EntryPoint]:
    """Return the entry points of a group, none if the package runs without being installed."""
    try:
        distribution = metadata.distribution("dpmesh")
    except metadata.PackageNotFoundError:
        return []
    return [entry for entry in distribution.entry_points if entry.group == group]
