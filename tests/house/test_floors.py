"""The layers of the house: each floor imports only lower ones."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import networkx

import dpmesh

PACKAGE = Path(dpmesh.__file__).parent

# From the ground up. Entries of one line never import each other; within an entry a module may.
FLOORS = [
    ["_core"],
    ["_extras", "_files", "_html", "_table", "_validate"],
    ["_ragged", "tables"],
    ["_arrays", "_networks", "ranges"],
    ["ranges.sites"],
    ["keys", "kernels"],
    ["privacy.shown", "privacy.types"],
    ["models"],
    ["schedules", "topology", "data", "privacy.accounting"],
    ["problems", "denoisers", "controllers"],
    ["privacy.compression", "privacy.grid", "privacy.sampling"],
    ["privacy.correlated"],
    ["privacy.rounding", "privacy.sensitivity"],
    ["privacy.mechanisms"],
    ["privacy.secure", "privacy.rows"],
    ["privacy.releases"],
    ["privacy.kinds"],
    ["privacy.own_noise", "privacy.parts", "privacy.charged"],
    ["privacy.cost"],
    ["privacy.views"],
    ["privacy.plan"],
    ["privacy.foreseen"],
    ["privacy.plain_words", "privacy.report", "privacy.budget"],
    ["privacy.filters", "privacy.ledger"],
    ["algorithms.allocation", "algorithms.worst_case"],
    ["algorithms.messages"],
    [
        "algorithms.base",
        "algorithms.federated_contribution",
        "algorithms.federated_server",
        "algorithms.gradients",
    ],
    [
        "algorithms.federated_combination",
        "algorithms.federated_gradients",
        "algorithms.federated_updates",
        "algorithms.descent",
        "algorithms.dry_run",
        "algorithms.without_replacement_releases",
    ],
    ["algorithms.without_replacement_decisions"],
    [
        "algorithms.secure_gossip",
        "algorithms.online",
        "algorithms.federated",
        "algorithms.gradient_descent",
        "algorithms.gradient_tracking",
        "algorithms.push_sum",
        "algorithms.quantized",
        "algorithms.record_sums",
        "algorithms.with_replacement",
        "algorithms.without_replacement",
        "plots",
    ],
    ["algorithms.first_stage", "algorithms.adaptive_sums"],
    ["algorithms.registry"],
    ["defaults"],
    ["run"],
    ["settings"],
    ["statistics"],
    ["audit", "deploy", "engines"],
    ["sklearn", "demo", "forecast"],
    ["experiments"],
    ["reproduce"],
    ["cli"],
    ["__main__"],
]
RANK = {name: rank for rank, names in enumerate(FLOORS) for name in names}


def _floor(module: str) -> str | None:
    """The entry of FLOORS that a module belongs to: its longest known prefix."""
    parts = module.split(".")
    prefixes = [".".join(parts[:n]) for n in range(len(parts), 0, -1)]
    return next((name for name in prefixes if name in RANK), None)


def _nodes(path: Path, *, hints: bool = False) -> Iterator[ast.AST]:
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test) and not hints:
            node.body = []
    return ast.walk(tree)


def _imports(path: Path, *, hints: bool = False) -> set[str]:
    """Modules of the package that a file imports, functions included; hints are for types only."""
    found = set()
    for node in _nodes(path, hints=hints):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dpmesh"):
            base = node.module.removeprefix("dpmesh").removeprefix(".")
            found |= {f"{base}.{alias.name}".strip(".") for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {a.name.removeprefix("dpmesh.") for a in node.names if "dpmesh" in a.name}
    return found


def test_each_floor_imports_only_lower_ones() -> None:
    wrong = []
    for path in sorted(PACKAGE.rglob("*.py")):
        module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        if module.endswith("__init__"):
            continue  # an __init__ gathers the names of its own folder
        own = _floor(module)
        assert own is not None, f"{module} is on no floor: add it to FLOORS"
        for imported in _imports(path):
            other = _floor(imported)
            if other and other != own and RANK[other] >= RANK[own]:
                wrong.append(f"{module} (floor {RANK[own]}) imports {imported} ({RANK[other]})")
    assert not wrong, "\n".join(wrong)


def test_no_modules_or_folders_import_each_other() -> None:
    """Nor in a circle, type hints and imports in functions included."""
    modules = {
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"): path
        for path in PACKAGE.rglob("*.py")
    }
    imports = networkx.DiGraph(
        (module, name if name in modules else name.rpartition(".")[0])
        for module, path in modules.items()
        for name in _imports(path, hints=True)
    )
    folders = networkx.DiGraph(
        (module.partition(".")[0], name.partition(".")[0]) for module, name in imports.edges
    )
    for graph in (imports, folders.subgraph({*folders} - {""})):
        assert not [c for c in networkx.strongly_connected_components(graph) if len(c) > 1]


def _asked_of_the_package(path: Path) -> set[str]:
    """Names that a file takes from `dpmesh` itself at run time."""
    tops = (n for n in _nodes(path) if isinstance(n, ast.ImportFrom))
    return {alias.name for node in tops if node.module == "dpmesh" for alias in node.names}


def test_no_module_takes_what_the_package_imports_on_first_use() -> None:
    """Threads wait for each other there: see `_ONE_AT_A_TIME` in `dpmesh/__init__.py`."""
    there_at_once = {"_core", "__version__"}
    for path in sorted(PACKAGE.rglob("*.py")):
        names = _asked_of_the_package(path) - there_at_once
        assert not names, f"{path}: import dpmesh.x as x, for x in {names}"


def test_the_test_sees_an_import_upwards(tmp_path: Path) -> None:
    path = tmp_path / "low.py"
    path.write_text("from dpmesh.run import loop\n")
    assert _imports(path) == {"run.loop"}
    assert _floor("run.loop") == "run"


def test_a_dataclass_takes_no_two_numbers_by_position() -> None:
    """They are too easily swapped; rows of tables and what engines send are not made by users."""
    for path in PACKAGE.rglob("*.py"):
        inner = path.relative_to(PACKAGE).parts[0] in ("reproduce", "deploy", "engines")
        if inner or path.name.startswith("_"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            kinds = [ast.unparse(kind) for kind in getattr(node, "decorator_list", ())]
            made = next((kind for kind in kinds if kind.startswith("dataclass")), "kw_only=True")
            if not isinstance(node, ast.ClassDef) or "kw_only=True" in made:
                continue
            hints = [ast.unparse(x.annotation) for x in node.body if isinstance(x, ast.AnnAssign)]
            ahead = hints[: hints.index("KW_ONLY")] if "KW_ONLY" in hints else hints
            numbers = [hint for hint in ahead if hint.split(" | ")[0] in ("int", "float")]
            assert node.name.startswith("_") or len(numbers) < 2, f"{path}: {node.name}"
