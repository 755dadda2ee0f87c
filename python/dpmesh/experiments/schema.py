"""The JSON schema of experiment files, for editors; made from the same parts that read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpmesh.algorithms.base import NOISES
from dpmesh.experiments.experiment import RunSettings
from dpmesh.experiments.files import load_files
from dpmesh.experiments.parts import SECTIONS, VALUES, Entry, Maker, entries, schema_of
from dpmesh.experiments.settings import OF_DEFAULT_KIND
from dpmesh.experiments.sources import load

_KEEP = {
    "type": "number",
    "description": "Each link is up in a round with this probability; by default always.",
}
_EPSILON = {
    "type": ["number", "string"],
    "description": "Budget of the run at run.delta, from which the noise is calibrated, or "
    '"none", instead of the noise.',
}
_SWEEP = {
    "type": "object",
    "description": "Lists of values by key, such as algorithm.epsilon = [1.0, 4.0], and seeds: "
    "every combination is run.",
}


def json_schema() -> dict[str, Any]:
    """Return the schema of a whole file."""
    sections = {name: _section(name, kinds) for name, kinds in SECTIONS.items()}
    for kind in sections["algorithm"]["oneOf"]:
        kind["properties"].setdefault("epsilon", _EPSILON)
        known = {*NOISES, "records", "dim", "rounds", "delta"}
        kind["required"] = [name for name in kind["required"] if name not in known]
    for kind in sections["topology"]["oneOf"]:
        kind["properties"]["keep"] = _KEEP
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "An experiment of dpmesh",
        "type": "object",
        "properties": {
            "run": _table(entries(RunSettings)),
            "data": {"oneOf": [_table(entries(load)), _table(entries(load_files))]},
            **sections,
            "sweep": _SWEEP,
        },
        "required": ["run", "data", "algorithm"],
        "additionalProperties": False,
        "$defs": {name: _table(entries(cls), name) for name, cls in VALUES.items()},
    }


def all_keys() -> str:
    """Return every key of a file with its meaning and its default, as text."""
    lines: list[str] = []
    tables: dict[str, Maker] = {
        "[run]": RunSettings,
        "[data]": load,
        "[data] with files of your own": load_files,
    }
    for section, kinds in SECTIONS.items():
        several = len(kinds) > 1
        tables |= {
            f'[{section}] kind = "{k}"' if several else f"[{section}]": m for k, m in kinds.items()
        }
    tables |= {f'{{kind = "{name}"}}': cls for name, cls in VALUES.items()}
    for title, maker in tables.items():
        lines += ["", title]
        for name, entry in entries(maker).items():
            default = "" if entry.required or entry.default is None else f" [{entry.default}]"
            lines.append(f"  {name}{default}: {entry.text}")
    lines += ["", "[algorithm]", f"  epsilon, for any: {_EPSILON['description']}"]
    lines += ["  clients, records, dim, rounds: those of the data and the run if left out."]
    lines += ["", "[topology]", f"  keep [1.0]: {_KEEP['description']}"]
    lines += ["", "[sweep]", f"  {_SWEEP['description']}"]
    return "\n".join(lines[1:])


def _section(name: str, kinds: Mapping[str, Maker]) -> dict[str, Any]:
    several = len(kinds) > 1 and name not in OF_DEFAULT_KIND
    tables = [_table(entries(m), kind, needed=several) for kind, m in kinds.items()]
    return {"oneOf": tables}


def _table(
    keys: Mapping[str, Entry], kind: str | None = None, *, needed: bool = True
) -> dict[str, Any]:
    properties: dict[str, Any] = {} if kind is None else {"kind": {"const": kind}}
    for name, entry in keys.items():
        properties[name] = {**(schema_of(entry.hint) or {}), "description": entry.text}
    required = [name for name, entry in keys.items() if entry.required]
    if kind is not None and needed:
        required.insert(0, "kind")
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }
