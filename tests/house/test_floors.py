"""The layers of the house: each floor imports only lower ones."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import networkx

import dpmesh
from dpmesh.algorithms.registry import REGISTRY

PACKAGE = Path(dpmesh.__file__).parent
PAPERS = PACKAGE.with_name("dpmesh_papers")

NAMES_OF_USERS = {"_networks", "settings.files", "deploy.contract"}
"""Modules that import what a user names, which is none of ours."""

REGISTERED = [entry.kind.__module__.removeprefix("dpmesh.") for entry in REGISTRY]
"""Modules of the algorithms, which never import each other."""

# From the ground up. Entries of one line never import each other; within an entry a module may.
FLOORS = [
    ["_core"],
    ["_untrusted"],
    [
        "_entry_points",
        "_extras",
        "_files",
        "_html",
        "_memory",
        "_privacy_types",
        "_ragged",
        "_table",
        "_validate",
    ],
    ["_arrays", "_epsilons", "_networks", "_rounded"],
    ["keys", "kernels"],
    ["tables"],
    ["schedules", "topology", "data"],
    ["accounting"],
    ["noise.compression", "noise.grid", "noise.rounding", "noise.sensitivity"],
    ["noise.correlated"],
    ["noise.mechanisms"],
    ["noise.rows", "noise.secure"],
    ["noise.independent"],
    ["problems"],
    ["privacy.sampling"],
    ["privacy.releases"],
    ["privacy.kinds"],
    ["privacy.custom_noise", "privacy.parts", "privacy.charged"],
    ["privacy.cost"],
    ["privacy.views"],
    ["privacy.plan"],
    ["privacy.foreseen"],
    ["privacy.plain_words", "privacy.report", "privacy.budget"],
    ["privacy.filters", "privacy.ledger", "privacy.verification"],
    ["privacy.other_tools"],
    ["algorithms.controllers", "algorithms.denoisers"],
    ["algorithms.allocation", "algorithms.worst_case"],
    ["algorithms.clipping", "algorithms.messages"],
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
    ],
    [*REGISTERED, "plots"],
    ["algorithms.first_stage", "algorithms.adaptive_sums"],
    ["algorithms.calibrated"],
    ["algorithms.registry"],
    ["defaults"],
    ["run"],
    ["settings"],
    ["statistics"],
    ["audit", "deploy", "engines"],
    ["sklearn", "demo", "forecast"],
    ["experiments"],
    ["cli"],
    ["__main__"],
    ["dpmesh_papers"],
]
RANK = {name: rank for rank, names in enumerate(FLOORS) for name in names}


def _floor(module: str) -> str | None:
    """The entry of FLOORS that a module belongs to: its longest known prefix."""
    parts = module.split(".")
    prefixes = [".".join(parts[:n]) for n in range(len(parts), 0, -1)]
    return next((name for name in prefixes if name in RANK), None)


READ = (ast.Call, ast.ClassDef, ast.Constant, ast.Import, ast.ImportFrom)
"""Kinds of syntax that the tests below read."""


@cache
def _nodes(source: str, *, hints: bool) -> list[ast.AST]:
    """The syntax of a module that the tests read; without `hints`, not what is for types only."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test) and not hints:
            node.body = []
    return [node for node in ast.walk(tree) if isinstance(node, READ)]


def _module_of(path: Path) -> str:
    """Return the name of a file's module, without `dpmesh.` before it."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts).removeprefix("dpmesh.").removesuffix(".__init__")


MODULES = {
    _module_of(path): path for folder in (PACKAGE, PAPERS) for path in sorted(folder.rglob("*.py"))
}


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] in ("dpmesh", "dpmesh_papers")


def _imports(path: Path, *, hints: bool = False) -> set[str]:
    """Modules that a file imports, functions included; hints are for types only.

    A text that is the name of a module counts as an import: somebody hands it to `import_module`.
    """
    found = set()
    for node in _nodes(path.read_text(), hints=hints):
        if isinstance(node, ast.ImportFrom) and _is_ours(node.module or ""):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if _is_ours(alias.name)}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            name = node.value.partition(":")[0].removesuffix(".")  # also the start of an f-string
            if _is_ours(name) and name.removeprefix("dpmesh.") in MODULES:
                found.add(name)
    return {name.removeprefix("dpmesh.") for name in found - {"dpmesh"}}


def test_each_floor_imports_only_lower_ones() -> None:
    wrong = []
    for module, path in MODULES.items():
        if path.name == "__init__.py":
            continue  # an __init__ gathers the names of its own folder
        own = _floor(module)
        assert own is not None, f"{module} is on no floor: add it to FLOORS"
        for imported in _imports(path):
            other = _floor(imported)
            if other and other != own and RANK[other] >= RANK[own]:
                wrong.append(f"{module} (floor {RANK[own]}) imports {imported} ({RANK[other]})")
    assert not wrong, "\n".join(wrong)


def test_the_package_never_imports_the_papers() -> None:
    for path in PACKAGE.rglob("*.py"):
        assert not [name for name in _imports(path) if name.startswith("dpmesh_papers")], path


def test_names_of_modules_are_written_out() -> None:
    """Else this test could not see what is imported by name."""
    for module, path in MODULES.items():
        for node in _nodes(path.read_text(), hints=False):
            if not isinstance(node, ast.Call) or module in NAMES_OF_USERS:
                continue
            if ast.unparse(node.func).rpartition(".")[2] in ("import_module", "__import__"):
                name = node.args[0]
                start = name.values[0] if isinstance(name, ast.JoinedStr) else name
                variable = (ast.Attribute, ast.Call, ast.FormattedValue, ast.Name)
                assert not isinstance(start, variable), f"{module}: {ast.unparse(node)}"


def test_no_modules_or_folders_import_each_other() -> None:
    """Nor in a circle, type hints and imports in functions included."""
    imports = networkx.DiGraph(
        (module, name if name in MODULES else name.rpartition(".")[0])
        for module, path in MODULES.items()
        for name in _imports(path, hints=True) - {module}
    )
    folders = networkx.DiGraph(
        (module.partition(".")[0], name.partition(".")[0]) for module, name in imports.edges
    )
    for graph in (imports, folders.subgraph({*folders} - {""})):
        assert not [c for c in networkx.strongly_connected_components(graph) if len(c) > 1]


def _asked_of_the_package(path: Path) -> set[str]:
    """Names that a file takes from `dpmesh` itself at run time."""
    tops = (n for n in _nodes(path.read_text(), hints=False) if isinstance(n, ast.ImportFrom))
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
    for text in (
        'import_module("dpmesh_papers.deep_q")',
        'ABOVE = ("dpmesh_papers.deep_q:DeepQ",)',
    ):
        path.write_text(text)
        assert _imports(path) == {"dpmesh_papers.deep_q"}


def test_a_dataclass_takes_no_two_numbers_by_position() -> None:
    """They are too easily swapped; rows of tables and what engines send are not made by users."""
    for path in PACKAGE.rglob("*.py"):
        inner = path.relative_to(PACKAGE).parts[0] in ("deploy", "engines")
        if inner or path.name.startswith("_"):
            continue
        for node in _nodes(path.read_text(), hints=False):
            kinds = [ast.unparse(kind) for kind in getattr(node, "decorator_list", ())]
            made = next((kind for kind in kinds if kind.startswith("dataclass")), "kw_only=True")
            if not isinstance(node, ast.ClassDef) or "kw_only=True" in made:
                continue
            hints = [ast.unparse(x.annotation) for x in node.body if isinstance(x, ast.AnnAssign)]
            ahead = hints[: hints.index("KW_ONLY")] if "KW_ONLY" in hints else hints
            numbers = [hint for hint in ahead if hint.split(" | ")[0] in ("int", "float")]
            assert node.name.startswith("_") or len(numbers) < 2, f"{path}: {node.name}"
