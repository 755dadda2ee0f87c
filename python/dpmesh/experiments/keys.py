"""The keys of experiment files, listed from the same parts that read them."""

from __future__ import annotations

from dpmesh.experiments.experiment import RunSettings
from dpmesh.experiments.files import load_files
from dpmesh.experiments.sources import load
from dpmesh.settings.parts import SECTIONS, VALUES, Maker, entries

_KEEP = "Each link is up in a round with this probability; by default always."
_EPSILON = (
    "Budget of the run at run.delta, from which the noise is calibrated, or "
    '"none", instead of the noise.'
)
_SWEEP = (
    "Lists of values by key, such as algorithm.epsilon = [1.0, 4.0], and seeds: "
    "every combination is run."
)


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
    lines += ["", "[algorithm]", f"  epsilon, for any: {_EPSILON}"]
    lines += ["  clients, records, dim, rounds: those of the data and the run if left out."]
    lines += ["", "[topology]", f"  keep [1.0]: {_KEEP}", "", "[sweep]", f"  {_SWEEP}"]
    return "\n".join(lines[1:])
