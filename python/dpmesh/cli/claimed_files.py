"""Claims of files, recomputed from the plans in them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpmesh._files import read_toml
from dpmesh._untrusted import read_json
from dpmesh._validate import fail
from dpmesh.cli._sites import marks_folder
from dpmesh.privacy.plan import Plan
from dpmesh.privacy.report import Report
from dpmesh.privacy.verification import Statement, Verification, compared, is_below, refuted, verify

if TYPE_CHECKING:
    from dpmesh.deploy import Contract

DATABASE = "node.db"
"""In the folder of a party."""

SEEDED = "NOTE  the noise is seeded: whoever knows the seed can remove it, and no epsilon covers it"

WANTED = (
    "a model file, the folder of a run or of a party, a contract, answers, a synthetic table or a "
    "run of another tool"
)


def verification_of(
    file: Path, *, contract: Path | None = None, module: str | None = None
) -> Verification:
    """Return the comparison of a file's claims with its own plan.

    Parameters
    ----------
    file
        The file, or a folder.
    contract
        The contract whose parties signed the file: their signatures are checked, and its plan is
        the one that counts.
    module
        Module whose algorithm the contract names.

    Raises
    ------
    ValueError
        If the file holds no plan, or is none of those that this package writes.
    OSError
        If it cannot be read.
    """
    signed = None if contract is None else _Signed(path=contract, module=module)
    if not file.exists():
        raise FileNotFoundError(f"{file}: there is no such file or folder")
    if file.is_dir():
        if (file / DATABASE).exists():
            return _of_folder(file)
        return _of_run(file)
    if file.suffix == ".json":
        return _of_answers(file, signed)
    if file.suffix == ".csv":
        return _of_synthetic(file, file.with_name(f"{file.name}.toml"))
    if file.suffix == ".toml":
        return _of_toml(file, module)
    return _of_model(file, signed)


@dataclass(frozen=True, kw_only=True)
class _Signed:
    """A contract whose parties signed a file."""

    path: Path
    module: str | None

    def read(self) -> Contract:
        from dpmesh.deploy import read_contract

        return read_contract(self.path, self.module)


def _of_model(file: Path, signed: _Signed | None) -> Verification:
    """Return the verification of a model file."""
    from dpmesh.tables.models import Model

    if signed is not None:
        contract = signed.read()
        model = Model.load(file, network=contract.tables.network)
        privacy = Report.from_dict(model.about["privacy"])
        return _of_signed(model, contract, Statement.of_report("about.privacy", privacy))
    about = Model.load(file).about
    if about.get("plan") is None:
        expected = "a model file that carries its plan, as dpmesh fit writes it, or --contract"
        fail("file", expected, str(file))
    privacy = Report.from_dict(about["privacy"])
    fitted = Report.from_dict(about["fit"]["privacy"])
    epsilon = inf if about["epsilon"] is None else float(about["epsilon"])
    claims = [
        Statement.of_report("about.privacy", privacy),
        Statement.of_report("about.fit.privacy", fitted),
        Statement(where="about.epsilon", epsilon=epsilon, delta=float(about["delta"])),
    ]
    plans = [*map(Plan.from_dict, about.get("earlier", ())), Plan.from_dict(about["plan"])]
    verification = verify(
        plans,
        claims,
        colluding=about.get("colluding"),
        selection=float(about.get("selection", 0.0)),
        nodes=int(about["fit"]["sites"]),
    )
    if privacy.seeded:
        return verification.beside(SEEDED)
    return verification


def _of_run(folder: Path) -> Verification:
    """Return the verification of the folder of a run."""
    from dpmesh.experiments.results import Result

    result = Result.load(folder)
    claim = Statement.of_report("run.privacy", result.privacy)
    rows = len(result.released) if (folder / "released.npy").exists() else 1
    verification = verify(result.ledger, [claim], nodes=rows if rows > 1 else None)
    if result.privacy.seeded:
        return verification.beside(SEEDED)
    return verification


def _of_answers(file: Path, signed: _Signed | None) -> Verification:
    """Return the verification of answers of questions."""
    try:
        saved = read_json(file)
    except ValueError:
        fail(str(file), "answers that dpmesh stats or dpmesh node wrote", "another")
    if not isinstance(saved, dict) or not {"privacy", "ledger"} <= saved.keys():
        fail(str(file), "answers that dpmesh stats or dpmesh node wrote", "another")
    privacy = Report.from_dict(saved["privacy"])
    claim = Statement.of_report("privacy", privacy)
    if signed is not None:
        return _of_signed(saved, signed.read(), claim)
    plans = [*map(Plan.from_dict, saved.get("earlier", ())), Plan.from_dict(saved["ledger"])]
    verification = verify(plans, [claim])
    if privacy.seeded:
        return verification.beside(SEEDED)
    return verification


def _of_signed(model_or_answers: Any, contract: Contract, claim: Statement) -> Verification:
    """Return the verification of what parties made: its signatures, and its contract's plan."""
    from dpmesh.deploy.outcome import verified

    origin = verified(model_or_answers, contract)
    sealed = ", ".join(origin.sealed_by) or "no party, as each has a model of its own"
    notes = f"ok    signed by {origin.party}", f"ok    sealed by {sealed}"
    return verify(contract.plan, [claim], nodes=contract.nodes).beside(*notes)


def _of_toml(file: Path, module: str | None) -> Verification:
    """Return the verification of a contract, a synthetic table, or runs of other tools."""
    from dpmesh.privacy.other_tools import PROCEDURES

    content, _ = read_toml(file)
    if "contract" in content:
        return _of_contract(file, module)
    if "ledgers" in content or "rows" in content:
        return _of_synthetic(file, file)
    if not content.keys() & PROCEDURES.keys():
        fail(str(file), WANTED, "another")
    return _of_other_runs(content, PROCEDURES)


def _of_contract(file: Path, module: str | None) -> Verification:
    """Return the verification of a contract: the epsilon of each party."""
    from dpmesh.deploy import read_contract
    from dpmesh.deploy.assembly import PartyEpsilonError

    try:
        contract = read_contract(file, module)
    except PartyEpsilonError as error:
        return refuted(str(error))
    lines = []
    for party in contract.parties:
        claim = Statement(where=f"party {party.name}", epsilon=party.epsilon, delta=party.delta)
        lines.append(compared(claim, contract.cost(party.delta), ()))
    return Verification(lines=tuple(lines), refuted=False)


def _of_folder(folder: Path) -> Verification:
    """Return the verification of a party's ledger: the budget, and each contract's charges."""
    from dpmesh.deploy import Folder

    lines = []
    wrong = False
    with closing(Folder.open(folder, marks=marks_folder())) as party_folder:
        budget = Statement(
            where="budget", epsilon=party_folder.budget.epsilon, delta=party_folder.budget.delta
        )
        cost = party_folder.cost()
        problems = ["more is charged than the budget"] if is_below(budget.epsilon, cost) else []
        lines.append(compared(budget, cost, problems))
        wrong = bool(problems)
        for agreement in party_folder.contracts():
            reserved = party_folder.reserved(agreement).epsilon
            spent = party_folder.spent(agreement)
            claim = Statement(
                where=f"contract {agreement.hash.hex()[:16]}, reserved",
                epsilon=reserved,
                delta=party_folder.budget.delta,
            )
            released = 0.0 if spent is None else spent.epsilon
            problems = ["more was released than reserved"] if is_below(reserved, released) else []
            lines.append(compared(claim, released, problems))
            wrong = wrong or bool(problems)
    return Verification(lines=tuple(lines), refuted=wrong)


def _of_synthetic(file: Path, beside: Path) -> Verification:
    """Return the verification of a synthetic table, from the file that stands beside it."""
    if not beside.exists():
        expected = f"a table that dpmesh synthesize wrote, with {beside.name} beside it"
        fail(str(file), expected, "another")
    stated, _ = read_toml(beside)
    required = {"epsilon", "delta", "neighboring_relation", "unit", "ledgers"}
    lacking = sorted(required - stated.keys())
    if lacking:
        expected = f"a file with {', '.join(lacking)}, as dpmesh synthesize writes it"
        fail(str(beside), expected, "another")
    claim = Statement(
        where="epsilon",
        epsilon=float(stated["epsilon"]),
        delta=float(stated["delta"]),
        relation=stated["neighboring_relation"],
        unit=stated["unit"],
    )
    verification = verify([*map(Plan.from_dict, json.loads(stated["ledgers"]))], [claim])
    if stated.get("seeded"):
        return verification.beside(SEEDED)
    return verification


def _of_other_runs(
    content: Mapping[str, Any], procedures: Mapping[str, Callable[..., Any]]
) -> Verification:
    """Return the verification of runs of other tools: a table for each procedure."""
    from dpmesh.privacy.other_tools import judged

    lines = list[str]()
    wrong = False
    for name, table in content.items():
        if name not in procedures or not isinstance(table, dict):
            tables = ", ".join(f"[{procedure}]" for procedure in procedures)
            fail(name, f"tables {tables}", "another")
        stated = dict(table)
        lacking = sorted({"claims", "noise_multiplier"} - stated.keys())
        if lacking:
            fail(f"[{name}]", f"keys {', '.join(lacking)}", "none")
        claims = stated.pop("claims")
        noise_multiplier = stated.pop("noise_multiplier")
        delta = stated.pop("delta", 0.0 if name == "laplace" else 1e-5)
        relation = stated.pop("relation", "add_remove").replace("-", "_")
        try:
            run = procedures[name](**stated)
        except TypeError as error:
            fail(f"[{name}]", "the options of its command, with _ for -", str(error))
        verification = judged(
            run, claims=claims, noise_multiplier=noise_multiplier, delta=delta, relation=relation
        )
        lines += verification.lines
        wrong = wrong or verification.refuted
    return Verification(lines=tuple(lines), refuted=wrong)
