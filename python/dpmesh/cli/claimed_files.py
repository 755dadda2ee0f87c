"""Verification of files for ``dpmesh verify``: epsilon recomputed from their plans of releases.

`verification_of` recognizes the kind of file. A *plan* or *ledger* lists the mechanisms of the
planned or actual releases (`dpmesh.privacy.plan`); a *statement* is an epsilon that a file claims.
"""

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
"""Name of the database by which a party's folder is recognized."""

SEEDED_NOTE = (
    "NOTE  the noise is seeded: whoever knows the seed can remove it, and no epsilon covers it"
)

EXPECTED_FILES = (
    "a model file, the folder of a run or of a party, a contract, answers, a synthetic table or a "
    "run of another tool"
)


def verification_of(
    file: Path, *, contract: Path | None = None, module: str | None = None
) -> Verification:
    """Recompute the epsilon of a file from its plan, and compare it with the file's claims.

    Parameters
    ----------
    file
        The file, or a folder.
    contract
        Contract whose parties signed the file. Their signatures are checked, and epsilon is
        recomputed from the plan of the contract.
    module
        Python module whose algorithm the contract names.

    Raises
    ------
    ValueError
        If the file holds no plan, or is of no kind that this package writes.
    OSError
        If the file cannot be read.
    """
    signed = None if contract is None else _SigningContract(path=contract, module=module)
    if not file.exists():
        raise FileNotFoundError(f"{file}: there is no such file or folder")
    if file.is_dir():
        if (file / DATABASE).exists():
            return _verify_folder(file)
        return _verify_run(file)
    if file.suffix == ".json":
        return _verify_answers(file, signed)
    if file.suffix == ".csv":
        return _verify_synthetic(file, file.with_name(f"{file.name}.toml"))
    if file.suffix == ".toml":
        return _verify_toml(file, module)
    return _verify_model(file, signed)


@dataclass(frozen=True, kw_only=True)
class _SigningContract:
    """Path of a contract whose parties signed a file, and the module that it needs."""

    path: Path
    module: str | None

    def read(self) -> Contract:
        """Read the contract."""
        from dpmesh.deploy import read_contract

        return read_contract(self.path, self.module)


def _verify_model(file: Path, signed: _SigningContract | None) -> Verification:
    """Verify a model file."""
    from dpmesh.tables.models import Model

    if signed is not None:
        contract = signed.read()
        model = Model.load(file, network=contract.tables.network)
        privacy = Report.from_dict(model.about["privacy"])
        return _verify_signed(model, contract, Statement.of_report("about.privacy", privacy))
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
        return verification.with_notes(SEEDED_NOTE)
    return verification


def _verify_run(folder: Path) -> Verification:
    """Verify the folder of a run."""
    from dpmesh.experiments.results import Result

    result = Result.load(folder)
    claim = Statement.of_report("run.privacy", result.privacy)
    nodes = None  # where all nodes share one model
    if (folder / "released.npy").exists() and len(result.released) > 1:
        nodes = len(result.released)
    verification = verify(result.ledger, [claim], nodes=nodes)
    if result.privacy.seeded:
        return verification.with_notes(SEEDED_NOTE)
    return verification


def _verify_answers(file: Path, signed: _SigningContract | None) -> Verification:
    """Verify a file of private statistics."""
    try:
        saved = read_json(file)
    except ValueError:
        fail(str(file), "answers that dpmesh stats or dpmesh node wrote", "another")
    if not isinstance(saved, dict) or not {"privacy", "ledger"} <= saved.keys():
        fail(str(file), "answers that dpmesh stats or dpmesh node wrote", "another")
    privacy = Report.from_dict(saved["privacy"])
    claim = Statement.of_report("privacy", privacy)
    if signed is not None:
        return _verify_signed(saved, signed.read(), claim)
    plans = [*map(Plan.from_dict, saved.get("earlier", ())), Plan.from_dict(saved["ledger"])]
    verification = verify(plans, [claim])
    if privacy.seeded:
        return verification.with_notes(SEEDED_NOTE)
    return verification


def _verify_signed(model_or_answers: Any, contract: Contract, claim: Statement) -> Verification:
    """Verify the signatures of a model or of statistics, and the epsilon of their contract."""
    from dpmesh.deploy.outcome import verified

    origin = verified(model_or_answers, contract)
    sealed = ", ".join(origin.sealed_by) or "no party, as each has a model of its own"
    notes = f"ok    signed by {origin.party}", f"ok    sealed by {sealed}"
    return verify(contract.plan, [claim], nodes=contract.nodes).with_notes(*notes)


def _verify_toml(file: Path, module: str | None) -> Verification:
    """Verify a contract, the description of a synthetic table, or runs of other tools."""
    from dpmesh.privacy.other_tools import PROCEDURES

    content, _ = read_toml(file)
    if "contract" in content:
        return _verify_contract(file, module)
    if "ledgers" in content or "rows" in content:
        return _verify_synthetic(file, file)
    if not content.keys() & PROCEDURES.keys():
        fail(str(file), EXPECTED_FILES, "another")
    return _verify_other_runs(content, PROCEDURES)


def _verify_contract(file: Path, module: str | None) -> Verification:
    """Verify the epsilon of each party of a contract."""
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


def _verify_folder(folder: Path) -> Verification:
    """Verify a party's folder: its budget, and what each contract is charged."""
    from dpmesh.deploy import Folder

    lines = []
    is_refuted = False
    with closing(Folder.open(folder, marks=marks_folder())) as party_folder:
        budget = Statement(
            where="budget", epsilon=party_folder.budget.epsilon, delta=party_folder.budget.delta
        )
        cost = party_folder.cost()
        problems = ["more is charged than the budget"] if is_below(budget.epsilon, cost) else []
        lines.append(compared(budget, cost, problems))
        is_refuted = bool(problems)
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
            is_refuted = is_refuted or bool(problems)
    return Verification(lines=tuple(lines), refuted=is_refuted)


def _verify_synthetic(file: Path, description: Path) -> Verification:
    """Verify a synthetic table by its description, the TOML file that was written with it."""
    if not description.exists():
        expected = f"a table that dpmesh synthesize wrote, with {description.name} beside it"
        fail(str(file), expected, "another")
    stated, _ = read_toml(description)
    required = {"epsilon", "delta", "neighboring_relation", "unit", "ledgers"}
    lacking = sorted(required - stated.keys())
    if lacking:
        expected = f"a file with {', '.join(lacking)}, as dpmesh synthesize writes it"
        fail(str(description), expected, "another")
    claim = Statement(
        where="epsilon",
        epsilon=float(stated["epsilon"]),
        delta=float(stated["delta"]),
        relation=stated["neighboring_relation"],
        unit=stated["unit"],
    )
    verification = verify([*map(Plan.from_dict, json.loads(stated["ledgers"]))], [claim])
    if stated.get("seeded"):
        return verification.with_notes(SEEDED_NOTE)
    return verification


def _verify_other_runs(
    content: Mapping[str, Any], procedures: Mapping[str, Callable[..., Any]]
) -> Verification:
    """Verify runs of other tools: a table such as [dp-sgd] for each."""
    from dpmesh.privacy.other_tools import check_claim

    lines = list[str]()
    is_refuted = False
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
        verification = check_claim(
            run, claims=claims, noise_multiplier=noise_multiplier, delta=delta, relation=relation
        )
        lines += verification.lines
        is_refuted = is_refuted or verification.refuted
    return Verification(lines=tuple(lines), refuted=is_refuted)
