"""``dpmesh contract make``: a contract between parties, from public numbers.

A contract is a TOML file on which all parties agree: parties, ranges of columns, privacy budget,
algorithm and rounds. The contract trains a model (``--label``) or asks for private statistics
(``--question``). Hyperparameters follow from the rule of `dpmesh.defaults`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeAlias

import typer

import dpmesh.cli._options as options
from dpmesh._files import JsonObject
from dpmesh._validate import fail
from dpmesh.cli._progress import progress_bar
from dpmesh.cli._sites import public_ranges, to_toml
from dpmesh.cli.mesh import File
from dpmesh.schedules import Constant

if TYPE_CHECKING:
    from dpmesh.algorithms.base import AnyAlgorithm
    from dpmesh.defaults.rule import Method, Noise
    from dpmesh.deploy import Contract

Tables: TypeAlias = dict[str, JsonObject]
"""The tables of a contract, by name."""

_HEAD = "# Everything here is public. Each party reads it, compares its hash, and keeps it.\n"

_LABEL = typer.Option(
    help="Column to predict, as for dpmesh fit (default: none, questions are asked).",
    rich_help_panel=options.DATA,
)
_LATE = typer.Option(
    help="Parties of a sum that a round may miss; each lost round is charged.",
    rich_help_panel=options.OPERATION,
)
_RESERVE = typer.Option(
    help="Sums beside the rounds, for stalls, wrong parts and refusals (default: one for each "
    "party with --dropouts, else none).",
    rich_help_panel=options.OPERATION,
)
_FORECAST = typer.Option(
    help="Simulate on public data how much accuracy the reserve costs.",
    rich_help_panel=options.OUTPUT,
)
_ASKED = typer.Option(
    help="Without --label: an option of dpmesh stats, as mean=age,weight or weights=1,4.",
    rich_help_panel=options.QUESTIONS,
)


def make(
    file: File,
    party: Annotated[
        list[str],
        typer.Option(
            help="NAME:RECORDS:KEY of a party, once for each.", rich_help_panel=options.DATA
        ),
    ],
    ranges: Annotated[
        Path, typer.Option(help="Public ranges, as for dpmesh fit.", rich_help_panel=options.DATA)
    ],
    epsilon: Annotated[
        float,
        typer.Option(
            help="Privacy budget of each party in this contract.", rich_help_panel=options.PRIVACY
        ),
    ],
    delta: Annotated[
        float, typer.Option(help="Delta of the guarantee.", rich_help_panel=options.PRIVACY)
    ] = 1e-5,
    label: Annotated[str | None, _LABEL] = None,
    question: Annotated[list[str] | None, _ASKED] = None,
    algorithm: options.Method = None,
    noise: options.Mechanism = None,
    colluding: Annotated[
        int,
        typer.Option(
            help="Parties that may collude with the router.", rich_help_panel=options.PRIVACY
        ),
    ] = 1,
    dropouts: Annotated[int, _LATE] = 0,
    reserve: Annotated[int | None, _RESERVE] = None,
    features: Annotated[
        str,
        typer.Option(
            help="Features of the columns, as for dpmesh fit.", rich_help_panel=options.LEARNING
        ),
    ] = "columns",
    rounds: Annotated[
        int | None,
        typer.Option(
            help="Number of rounds (default: by the rule of dpmesh.defaults).",
            rich_help_panel=options.LEARNING,
        ),
    ] = None,
    deadline: Annotated[
        float,
        typer.Option(
            help="Seconds after which a party is late.", rich_help_panel=options.OPERATION
        ),
    ] = 60.0,
    forecast: Annotated[bool, _FORECAST] = True,
) -> None:
    """Write a contract for these parties; its steps, rounds and noise follow from public numbers.

    Run dpmesh contract check next.
    """
    from dpmesh._files import replace_text
    from dpmesh.deploy import read_contract
    from dpmesh.deploy.fault_tolerance import FaultTolerance
    from dpmesh.settings.format import FORMAT
    from dpmesh.tables.ranges import read_ranges

    if file.exists():
        fail("file", "a new file", f"{file}, which exists")
    parties = [_party(text) for text in party]
    released: list[JsonObject] = []
    public = read_ranges(ranges, released=released)
    if released:
        fail("ranges", "public knowledge alone", "released bounds, which no folder is charged for")
    request = _Request(
        records=[one_party.records for one_party in parties],
        epsilon=epsilon,
        delta=delta,
        colluding=colluding,
        dropouts=dropouts,
    )
    if label is None:
        options_of_models = (algorithm, noise, rounds, reserve)
        if any(option is not None for option in options_of_models):
            expected = "one beside --algorithm, --mechanism, --rounds or --reserve"
            fail("--label", expected, "questions")
        tables = _tables_of_statistics(public, question or (), request)
    else:
        if question:
            fail("--question", "no --label beside it", question[0])
        if reserve is None and dropouts > 0:
            reserve = max(dropouts, request.parties)
        tables = _tables_of_model(
            ranges,
            label,
            features,
            request,
            algorithm=algorithm,
            noise=noise,
            rounds=rounds,
            reserve=reserve,
        )
    tables["contract"] |= {"public_key": token_hex(32), "deadline": deadline}
    ranges_text = ranges.read_text(encoding="utf-8-sig").strip()
    text = f"{_HEAD}\nformat = {FORMAT}\n\n[ranges]\n{ranges_text}\n"
    for name, table in tables.items():
        text += f"\n[{name}]\n{_lines(table)}\n"
    for one_party in parties:
        table = {
            "name": one_party.name,
            "signing_key": one_party.signing_key,
            "records": one_party.records,
            "epsilon": epsilon,
            "delta": delta,
        }
        text += f"\n[[party]]\n{_lines(table)}\n"
    replace_text(file, text)
    typer.echo(f"wrote {file}. Read it, then: dpmesh contract check {file}")
    with suppress(ValueError):  # of keys that are still to be filled in, which the check refuses
        contract = read_contract(file)
        for line in FaultTolerance.of(contract).lines(contract):
            typer.echo(line)
        if forecast and dropouts > 0:
            for line in _forecast_of_reserve(contract, request, reserve):
                typer.echo(line)


def _forecast_of_reserve(
    contract: Contract, request: _Request, reserve: int | None
) -> Iterator[str]:
    """Yield lines about the loss of accuracy due to tolerated dropouts and the reserve of sums.

    The *reserve* is a number of further sums in the plan, for sums that fail, such as when a party
    is lost. All planned sums count towards epsilon, so a reserve needs more noise. The loss is
    simulated by pairs of runs, with and without a reserve, on public data. There is no line for
    models that `dpmesh.forecast` cannot simulate.
    """
    from dpmesh.forecast import MOST_FEATURES, MOST_RECORDS, PAIRS, public_data, reserve_cost

    outline = contract.tables.outline
    if outline is None or outline.classes is None or outline.multilabel:
        return
    columns = contract.tables.features - 1  # the last one is constant
    has_public_data = 2 <= len(outline.classes) <= 10
    if not has_public_data or not 1 <= columns <= MOST_FEATURES:
        return
    mean_records = sum(request.records) // request.parties
    line_head = "forecast    "
    try:
        pairs = PAIRS * len(public_data(len(outline.classes)))
        with progress_bar(pairs, unit="pair") as advance:
            costs = reserve_cost(
                sites=request.parties,
                records=min(mean_records, MOST_RECORDS // request.parties),
                features=columns,
                classes=len(outline.classes),
                epsilon=request.epsilon,
                delta=request.delta,
                colluding=request.colluding,
                dropouts=request.dropouts,
                reserve=reserve,
                on_pair=lambda: advance(1),
            )
    except ModuleNotFoundError as error:
        yield f"{line_head} {error}"
        return
    for cost in costs:
        yield f"{line_head} accuracy {cost}"


class _Party(NamedTuple):
    """Party of a contract: its name, number of records, and public signing key in hexadecimal."""

    name: str
    records: int
    signing_key: str


def _party(text: str) -> _Party:
    """Return the party that the text NAME:RECORDS:KEY describes."""
    parts = text.rsplit(":", 2)
    if len(parts) != 3 or not parts[1].isdecimal():
        fail("party", "NAME:RECORDS:KEY, such as north:180:2f..", text)
    name, records, signing_key = parts
    return _Party(name, int(records), signing_key)


@dataclass(frozen=True, kw_only=True)
class _Request:
    """Public numbers of records, and the privacy budget, on which a contract depends.

    Parameters
    ----------
    records
        Number of records of each party.
    epsilon, delta
        Budget of each party.
    colluding
        Parties that may collude with the router.
    dropouts
        Largest number of parties that a sum may miss.
    """

    records: Sequence[int]
    epsilon: float
    delta: float
    colluding: int
    dropouts: int

    @property
    def parties(self) -> int:
        """Number of parties."""
        return len(self.records)


def _tables_of_model(
    ranges: Path,
    label: str,
    features: str,
    request: _Request,
    *,
    algorithm: Method | None,
    noise: Noise | None,
    rounds: int | None,
    reserve: int | None,
) -> Tables:
    """Return the tables of a contract that trains a model, by the rule of `dpmesh.defaults`."""
    import dpmesh.defaults as defaults
    from dpmesh.defaults.rule import COMPLETE, DEGREE
    from dpmesh.run.tasks import task_of
    from dpmesh.tables import Columns
    from dpmesh.tables.models import Outline

    public, labels, target = public_ranges(ranges, label, None, [])
    outline = Outline.of(Columns.of(public, [*public], features=features), target)
    dim = outline.columns.dim
    sizes = defaults.Sizes(
        nodes=request.parties,
        fewest_records=min(request.records),
        total_records=sum(request.records),
        dim=dim * outline.outputs,
        features=dim,
        images=features == "scattering",
    )
    choice = defaults.choose(
        sizes,
        epsilon=request.epsilon,
        delta=request.delta,
        task=task_of(outline).defaults_task,
        algorithm=algorithm,
        noise=noise,
        colluding=request.colluding,
        dropouts=request.dropouts,
        reserve=reserve,
        rounds=rounds,
        between_parties=True,
    )
    contract: JsonObject = {"rounds": choice.rounds, "features": features}
    contract["label"] = labels[0] if len(labels) == 1 else labels
    problem: JsonObject = {"loss": outline.loss, "feature_norm": 1.0}
    if outline.classes is not None:
        problem["classes"] = outline.outputs
    tables = {"contract": contract, "problem": problem}
    if choice.topology is None:
        contract["quorum"] = request.parties - request.dropouts
        return tables | _secure_algorithm(choice.algorithm)
    contract["quorum"] = request.parties // 2 + 1
    contract["largest_row"] = min(1e4, 1e7 / max(request.records))
    topology: JsonObject = {"kind": "random_regular", "degree": DEGREE}
    if request.parties <= COMPLETE:
        topology = {"kind": "complete"}
    return tables | {"algorithm": _gossip_algorithm(choice.algorithm), "topology": topology}


def _secure_algorithm(algorithm: AnyAlgorithm) -> Tables:
    """Return the tables of an algorithm with secure aggregation, and of its first stage, if any."""
    from dpmesh.algorithms.first_stage import FirstStage

    if not isinstance(algorithm, FirstStage):
        return {"algorithm": _table(algorithm)}
    stage: JsonObject = {"noise_to_sensitivity": algorithm.mean.noise_to_sensitivity}
    if algorithm.moment is not None:
        stage["moment_noise"] = algorithm.moment.noise_to_sensitivity
    return {"first_stage": stage, "algorithm": _table(algorithm.algorithm)}


def _gossip_algorithm(algorithm: Any) -> JsonObject:
    """Return the table of a gossip algorithm, with more noise to cover rounding of messages."""
    from dpmesh.noise.rounding import DOUBLE

    noise_multiplier = algorithm.noise_multiplier * (1 + DOUBLE.share)
    table = _table(replace(algorithm, noise_multiplier=noise_multiplier, noise=None))
    if algorithm.noise is not None:
        table["noise"] = _table(algorithm.noise)
    return table


def _tables_of_statistics(
    public: JsonObject, questions: Sequence[str], request: _Request
) -> Tables:
    """Return the tables of a contract for private statistics.

    Without questions it asks for the default statistics of all columns.
    """
    from dpmesh.statistics.ask import AnswerBudget
    from dpmesh.statistics.options import questions_of
    from dpmesh.statistics.pairs import Pairs
    from dpmesh.tables.ranges import as_range

    table = _questions_table(questions)
    kinds = {name: as_range(name, form) for name, form in public.items()}
    spending = AnswerBudget(
        sites=request.parties,
        records=sum(request.records),
        epsilon=request.epsilon,
        delta=request.delta,
        colluding=request.colluding,
        dropouts=request.dropouts,
    )
    weights = table.get("weights", ())
    settled, sums = spending.settle(questions_of(table, kinds, ""), public, weights)
    for question in settled.questions:
        if isinstance(question, Pairs):  # the contract states the bins, which depend on the noise
            table["pairs"] = f"{','.join(question.columns)}:{question.bins}"
    algorithm: JsonObject = {
        "kind": settled.algorithm.__name__,
        "noise_to_sensitivity": sums.noise_to_sensitivity,
        "colluding": sums.colluding,
    }
    if sums.dropouts:
        algorithm["dropouts"] = sums.dropouts
    return {
        "contract": {"rounds": settled.rounds, "quorum": request.parties - sums.dropouts},
        "questions": table,
        "algorithm": algorithm,
    }


def _questions_table(questions: Sequence[str]) -> JsonObject:
    """Return the table [questions] for options such as ``mean=age,weight``."""
    from dpmesh.statistics.options import OPTIONS, weights_of

    table: JsonObject = {}
    for question in questions:
        name, _, text = question.partition("=")
        if name == "weights":
            table["weights"] = list(weights_of("--question weights", text))
            continue
        if name not in OPTIONS or not text:
            expected = f"one of {', '.join(OPTIONS)} with its columns, as mean=age"
            fail("--question", expected, question)
        table[name] = text if name == "by" else [*table.get(name, []), text]
    return table


def _lines(table: JsonObject) -> str:
    """Return the keys and values of a table as TOML."""
    return "\n".join(f"{name} = {to_toml(value)}" for name, value in table.items())


def _table(part: Any) -> JsonObject:
    """Return an algorithm, or a part of it, as a table with its class (`kind`) and its parameters.

    Parameters with their default value are left out, and those that follow from the parties.
    """
    from dpmesh.defaults.run_sizes import names_following

    following = names_following(type(part))
    table: JsonObject = {"kind": type(part).__name__}
    for field in fields(part):
        value = getattr(part, field.name)
        if isinstance(value, Constant):
            value = value.value
        default = field.default
        if field.default_factory is not MISSING:
            default = field.default_factory()
        is_redundant = value is None or value == default
        if not field.init or field.name in following or is_redundant:
            continue
        table[field.name] = _table(value) if is_dataclass(value) else value
    return table
