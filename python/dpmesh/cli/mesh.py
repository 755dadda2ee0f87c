"""``dpmesh contract``, ``dpmesh node`` and ``dpmesh router``: training between several parties.

A *contract* is a file on which parties agree. Each party keeps a *folder* with its keys and its
privacy budget. A party runs a *node* on its own records; nodes exchange messages through a
*router*. A run ends with a *sealed* model, which the other parties confirm by signatures.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from errno import EACCES, EADDRINUSE, EADDRNOTAVAIL, EPERM
from pathlib import Path
from socket import gaierror
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

import dpmesh.cli._options as options
from dpmesh._files import writable_folder
from dpmesh._untrusted import read_json
from dpmesh._validate import fail
from dpmesh.cli._logs import LogFormat, MessageWriter
from dpmesh.cli._progress import progress_bar
from dpmesh.cli._sites import marks_folder, text_format

if TYPE_CHECKING:
    from dpmesh.deploy import Contract, Folder, Node, Router

_INSECURE = "Allow plain HTTP off the loopback address: others can read."
_METRICS = "Serve /health and /metrics (Prometheus) at this port of 127.0.0.1."
_MODULE = "Your Python module, whose algorithm the contract names."

File = Annotated[Path, typer.Argument(help="The contract, a TOML file.")]
Insecure = Annotated[
    bool, typer.Option("--insecure", help=_INSECURE, rich_help_panel=options.CONNECTION)
]
PartyFolder = Annotated[Path, typer.Argument(help="Your folder, which dpmesh contract keys made.")]
Module = Annotated[
    str | None,
    typer.Option(
        help=_MODULE, callback=options.import_from_this_folder, rich_help_panel=options.OPERATION
    ),
]
Metrics = Annotated[
    int | None, typer.Option(help=_METRICS, min=0, max=65535, rich_help_panel=options.OPERATION)
]

_NEW_FOLDER = typer.Argument(help="The party's folder, which must not exist.")
_BUDGET = typer.Option(
    help="Privacy budget of its records: the largest epsilon of all contracts together."
)
_LOST = typer.Option(help="A contract that a lost folder of these records had joined; repeat it.")
_REHEARSED = typer.Option(help="Folder with a file of records for each party, named after it.")
_HASH = typer.Argument(help="Its hash, or the beginning, as status shows.")
_OUTCOME_FILE = typer.Argument(help="What dpmesh node wrote: a model, or answers (.json).")
_RECORDS = typer.Option(
    help="Your records: CSV, Parquet, Arrow or npz.", rich_help_panel=options.DATA
)
_FOLDER = typer.Option(
    help="Your folder, which dpmesh contract keys made.", rich_help_panel=options.PRIVACY
)
_ROUTER = typer.Option(
    help="Address of the router: https://host:port.", rich_help_panel=options.CONNECTION
)
_TRUSTED = typer.Option(
    exists=True,
    help="Certificate of the router to trust (default: those of the system).",
    rich_help_panel=options.CONNECTION,
)
_OUTPUT = typer.Option(help="File for the released model.", rich_help_panel=options.OUTPUT)
_PARTIAL = typer.Option(
    "--partial",
    help="Write a model also if the run ends early for you.",
    rich_help_panel=options.OUTPUT,
)
_RESTORED = typer.Option(
    "--restored",
    help="Charge all contracts once more, as your folder came from a backup.",
    rich_help_panel=options.PRIVACY,
)
_PATIENCE = typer.Option(
    help="Seconds without a router after which the node ends.", rich_help_panel=options.OPERATION
)
_CERTIFICATE = typer.Option(
    exists=True, help="TLS certificate, PEM.", rich_help_panel=options.CONNECTION
)
_KEY = typer.Option(
    "--certificate-key",
    exists=True,
    help="Private key of the certificate, PEM; no other user may read it.",
    rich_help_panel=options.CONNECTION,
)


def keys(
    folder: Annotated[Path, _NEW_FOLDER],
    epsilon: Annotated[float, _BUDGET],
    delta: Annotated[float, typer.Option(help="Delta of that budget.")] = 1e-5,
    lost: Annotated[list[Path] | None, _LOST] = None,
    module: Module = None,
) -> None:
    """Make a party's folder with its keys and its budget, and print the key for contracts.

    If you have lost a folder, name each contract that it had joined with --lost: the new folder is
    charged for all of them in whole.
    """
    from dpmesh.deploy import Folder, read_contract

    joined = [read_contract(file, module) for file in lost or ()]
    party = Folder.create(folder, epsilon=epsilon, delta=delta, lost=joined)
    typer.echo(f"made {folder}. Never copy it, and never restore it from a backup.")
    typer.echo(f'signing_key = "{party.signing.public.hex()}"')
    party.close()


def check(file: File, module: Module = None) -> None:
    """Print the epsilon of each party in a contract, its threat model, and what a round sends.

    Plays its rounds on made-up records, for at most 10 seconds, and refuses a contract whose
    algorithm sends what its plan does not have.
    """
    from dpmesh._epsilons import rounded_up
    from dpmesh.deploy import read_contract
    from dpmesh.deploy.fault_tolerance import FaultTolerance
    from dpmesh.deploy.schedule import bytes_of_round

    contract = read_contract(file, module)
    terms = contract.terms
    algorithm = contract.algorithm
    parts = [algorithm, getattr(algorithm, "algorithm", None)]  # a first stage has an inner one
    description = " of ".join(type(part).__name__ for part in parts if part)
    typer.echo(f"contract     {contract.hash.hex()}")
    pattern = ", by a token passed between parties"
    if contract.topology is not None:
        pattern = f" over {contract.topology}"
    adversary = "the router and all parties: all released messages may be public"
    secrets = contract.planned.secrets_at(contract.terms.rounds - 1)
    if secrets is not None:
        adversary = "the router, which sees all released messages, colluding with any"
        adversary = f"{adversary} {secrets.coalition} of the parties"
        if secrets.coalition == 0:
            adversary = "the router alone: another party can subtract the noise that it shares"
    sums = contract.planned.first_sum
    if sums is not None:
        pattern = (
            f", sums of {contract.nodes} parties under masks, {sums.modulus_bits} bits a number"
        )
        adversary = "the router, which sees only noisy sums, colluding with any"
        adversary = f"{adversary} {sums.colluding} of the parties"
        if sums.colluding == 0:
            adversary = "the router alone: another party can subtract its own noise"
    typer.echo(
        f"algorithm    {description}{pattern}; {terms.rounds} rounds of {contract.dim} parameters"
    )
    unit = "one record of a party, replaced by another"
    if contract.algorithm.unit == "user":
        unit = "a party with all of its records, which sends noise alone if it is left out"
    typer.echo(f"unit         {unit}")
    typer.echo(f"adversary    {adversary}")
    for party in contract.parties:
        cost = rounded_up(contract.cost(party.delta))
        allowed = f"of {party.epsilon:g} allowed, at delta = {party.delta:g}"
        typer.echo(f"{party.name:<12} epsilon = {cost} {allowed}; {party.records} records")
    if contract.tables.questions is None and not contract.tables.classifies:
        typer.echo("calibration  none under a contract: totals of skewed targets are too low")
    for assumption in contract.assumptions:
        typer.echo(f"assumption   {assumption}")
    for line in FaultTolerance.of(contract).lines(contract):
        typer.echo(line)
    with progress_bar(len(contract.patterns.thorough_rounds), unit="round") as advance:
        played = contract.patterns.check_thoroughly(on_round=lambda: advance(1))
    typer.echo(f"played       {played}")
    typer.echo(f"traffic      about {bytes_of_round(contract):,} bytes a round through the router")


def rehearse(
    file: File, data: Annotated[Path | None, _REHEARSED] = None, module: Module = None
) -> None:
    """Run a contract on this machine, without a network, and compare with the simulator."""
    from dpmesh.deploy import read_contract
    from dpmesh.deploy.rehearsal import rehearse as run

    contract = read_contract(file, module)
    folder = file.parent if data is None else data
    files = {}
    for party in contract.parties:
        candidates = [path for path in sorted(folder.glob(f"{party.name}.*")) if path != file]
        if not candidates:
            fail("--data", f"a folder with a file such as {party.name}.csv", folder)
        files[party.name] = candidates[0]
    result = run(contract, files, progress=_Progress())
    typer.echo(f"{result.bytes:,} bytes through the router")
    bits = "OTHER bits than"
    if result.equals_simulation:
        bits = "the same bits as"
    typer.echo(f"each party's released model has {bits} the simulator's")
    typer.echo("a rehearsal is not private: all noise comes from the contract's public key")


def status(folder: PartyFolder) -> None:
    """Print the key, what each contract is charged, and how far it got; end the node first."""
    from dpmesh._epsilons import rounded_up
    from dpmesh.deploy import Folder

    party_folder = Folder.open(folder, marks=marks_folder())
    typer.echo(f"signing_key  {party_folder.signing.public.hex()}")
    cost = rounded_up(party_folder.cost())
    typer.echo(f"budget       {cost} of {party_folder.budget} is promised to contracts")
    for agreement in party_folder.contracts():
        typer.echo(f"contract     {agreement.hash.hex()}")
        typer.echo(f"  charged    {_charged(party_folder, agreement)}")
        typer.echo(f"  state      {party_folder.state_of(agreement)}")
    party_folder.close()


def leave(folder: PartyFolder, contract: Annotated[str, _HASH]) -> None:
    """Leave a contract for ever; its cost stays charged. End its node first.

    A contract under which your folder has signed nothing is undone, and its cost is free again.
    """
    from dpmesh.deploy import Folder

    party_folder = Folder.open(folder, marks=marks_folder())
    matching = [
        agreement
        for agreement in party_folder.contracts()
        if agreement.hash.hex().startswith(contract)
    ]
    if len(matching) != 1:
        expected = "how one hash begins that dpmesh contract status lists"
        fail("contract", expected, f"{contract}, as {len(matching)} do")
    if party_folder.leave(matching[0]):
        typer.echo(
            f"undone {matching[0].hash.hex()}: it was never signed, and its cost is free again"
        )
    else:
        typer.echo(f"left {matching[0].hash.hex()} for ever; its cost stays charged to the folder")
    party_folder.close()


def restored(folder: PartyFolder) -> None:
    """Charge all that a folder was charged once more, as it came from a backup."""
    from dpmesh._epsilons import rounded_up
    from dpmesh.deploy import Folder

    party_folder = Folder.open(folder, marks=marks_folder())
    party_folder.charge_again()
    cost = rounded_up(party_folder.cost())
    typer.echo(f"charged {folder} once more: epsilon = {cost} of {party_folder.budget}")
    party_folder.close()


def verify(file: Annotated[Path, _OUTCOME_FILE], contract: File, module: Module = None) -> None:
    """Check who signed a model, or answers, and that they are what was signed."""
    from dpmesh.deploy import read_contract
    from dpmesh.deploy.outcome import verified
    from dpmesh.tables.models import Model

    agreed_contract = read_contract(contract, module)
    answers: Any = file.suffix == ".json" and read_json(file)
    origin = verified(
        answers or Model.load(file, network=agreed_contract.tables.network), agreed_contract
    )
    typer.echo(
        f"signed by {origin.party}, after {origin.rounds} of {agreed_contract.terms.rounds} rounds"
    )
    sealed = ", ".join(origin.sealed_by) or "nobody, as each party has a model of its own"
    typer.echo(f"sealed by {sealed}")


def node(
    file: File,
    data: Annotated[Path, _RECORDS],
    folder: Annotated[Path, _FOLDER],
    router: Annotated[str, _ROUTER],
    certificate: Annotated[Path | None, _TRUSTED] = None,
    insecure: Insecure = False,
    output: Annotated[Path | None, _OUTPUT] = None,
    partial: Annotated[bool, _PARTIAL] = False,
    restored: Annotated[bool, _RESTORED] = False,
    patience: Annotated[float, _PATIENCE] = 3600.0,
    log_format: LogFormat = "text",
    metrics: Metrics = None,
    separator: options.Separator = None,
    decimal: options.Decimal = None,
    encoding: options.Encoding = None,
    header: options.Header = None,
    escape: options.Escape = None,
    multiline: options.Multiline = False,
    skip_empty_lines: options.SkipEmptyLines = False,
    drop_missing_labels: options.DropMissingLabels = False,
    module: Module = None,
) -> None:
    """Take part in a contract, with your own records, until its run is over.

    A run that ends early for all parties ends with the sealed model of its last whole round.
    Exits with code 3 if the run ended without you, or your node has stopped, and then writes no
    model unless you give --partial.
    """
    from dpmesh.deploy import Folder, Node, read_contract
    from dpmesh.deploy.http import node_tls
    from dpmesh.deploy.http_node import Contact, LeftOutError, run_node, wait_for_router

    messages = MessageWriter(log_format)
    contract = read_contract(file, module)
    file_format = text_format(
        separator=separator,
        decimal=decimal,
        encoding=encoding,
        header=header,
        escape=escape,
        multiline=multiline,
        skip_empty=skip_empty_lines,
    )
    records = contract.tables.read(data, file_format, drop=drop_missing_labels)
    tls = node_tls(certificate)
    if output is not None:
        writable_folder(output.absolute().parent)  # fails before anything is charged
    party_folder = Folder.open(folder, marks=marks_folder())
    if not party_folder.has_joined(contract):
        try:
            with _sigterm_interrupts():
                wait_for_router(
                    contract,
                    party_folder.signing,
                    router,
                    tls,
                    patience=patience,
                    insecure=insecure,
                )
        except LeftOutError as error:
            messages.fail(error)
            raise typer.Exit(3) from None
        except KeyboardInterrupt:
            messages.say("interrupted, with nothing charged; the same command starts again")
            raise typer.Exit(130) from None
    if restored:
        party_folder.charge_again()
    party = Node(contract, party_folder, records)
    early_end: LeftOutError | None = None
    contact = Contact()
    progress = _Progress(messages.say)
    metrics_server = None
    if metrics is not None:
        from dpmesh.deploy.metrics import NodeMetrics

        metrics_server = NodeMetrics(party, contact, metrics)
        messages.say(metrics_server.address)

    def on_progress(_: Node) -> None:
        """Report a new round, and update the metrics."""
        progress.report_round(party)
        if metrics_server is not None:
            metrics_server.update()

    takes_part = f"{party.name} takes part; interrupt it whenever you like, and start it again"
    try:
        with _sigterm_interrupts():
            messages.say(takes_part)
            run_node(
                party,
                router,
                tls,
                on_progress,
                patience=patience,
                insecure=insecure,
                contact=contact,
            )
    except LeftOutError as error:
        early_end = error
    except KeyboardInterrupt:
        exception = ""
        if restored:
            exception = " without --restored, which would charge again"
        messages.say(f"interrupted; the same command goes on{exception}")
        raise typer.Exit(130) from None
    finally:
        scope = f"for this contract, at delta = {party_folder.budget.delta:g}"
        messages.say(f"charged so far: {_charged(party_folder, contract)} {scope}")
    if early_end is None and not party.is_sealed:
        early_end = LeftOutError(f"{party.name}: not sealed, as too few others have the same end")
    has_statistics = contract.tables.questions is not None
    if early_end is None and party.ended_early:
        where = f"after {party.rounds} of {contract.terms.rounds} rounds"
        ended = f"the run ended early for all parties, {where}: too few may release more"
        if has_statistics or party.released is None:
            partial = False
            early_end = LeftOutError(f"{ended}; there is nothing to write")
        else:
            messages.say(ended)
    has_result = early_end is None or (partial and party.released is not None)
    if output is not None and has_result:
        _write_outcome(party, contract, output, messages)
        party_folder.note_output(contract, output)
    if early_end is not None:
        messages.fail(early_end)
        raise typer.Exit(3)


def _write_outcome(party: Node, contract: Contract, output: Path, messages: MessageWriter) -> None:
    """Write the model of a finished run, or its private statistics if the contract asks for these.

    Raises
    ------
    OSError
        If the file cannot be written.
    """
    from dpmesh.cli._pages import write_answers

    has_statistics = contract.tables.questions is not None
    try:
        if has_statistics:
            answers = party.statistics()
            messages.say(str(answers))
            write_answers(output, answers)
        else:
            party.model().save(output)
    except OSError:
        messages.say("nothing is lost: the same command writes it later, and charges nothing")
        raise
    if not has_statistics:
        made_of = "rows" if contract.planned.first_sum is None else "sums"
        messages.say(f"wrote {output}: made of released {made_of} alone")


@contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    """Let SIGTERM, which service managers send, end a command as Ctrl-C does."""

    def interrupt(*_: object) -> None:
        if callable(signal.getsignal(signal.SIGINT)):
            signal.raise_signal(signal.SIGINT)  # a loop of asyncio then ends its task at an await
        else:
            raise KeyboardInterrupt  # a shell lets programs in the background ignore SIGINT

    previous_handler = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous_handler)


def _charged(folder: Folder, agreement: Any) -> str:
    """Return in words the epsilon of a contract's releases, and the epsilon reserved for it."""
    from dpmesh._epsilons import rounded_up

    spent = folder.spent(agreement)
    reserved = rounded_up(folder.reserved(agreement).epsilon)
    released = "0"
    if spent is not None:
        released = str(rounded_up(spent.epsilon))
    return f"epsilon = {released} of the {reserved} reserved"


def router(
    file: File,
    host: Annotated[
        str, typer.Option(help="Address to listen at.", rich_help_panel=options.CONNECTION)
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(help="Port to listen at.", rich_help_panel=options.CONNECTION)
    ] = 8443,
    certificate: Annotated[Path | None, _CERTIFICATE] = None,
    key: Annotated[Path | None, _KEY] = None,
    insecure: Insecure = False,
    log_format: LogFormat = "text",
    metrics: Metrics = None,
    module: Module = None,
) -> None:
    """Relay messages, or add up masked sums, between the nodes of a contract until it is over."""
    from dpmesh.deploy import Router, read_contract
    from dpmesh.deploy.http import RouterServer, server_tls

    messages = MessageWriter(log_format)
    contract = read_contract(file, module)
    if key is not None and certificate is None:
        fail("certificate", "that of the key", "none")
    tls = None if certificate is None else server_tls(certificate, key)
    try:
        server = RouterServer(Router(contract), host, port, tls, insecure=insecure)
    except OSError as error:
        _fail_to_listen(error, host, port)
    progress = _Progress(messages.say)
    metrics_server = None

    def on_progress(_: Router) -> None:
        """Report a new round, and update the metrics."""
        progress(server.router)
        if metrics_server is not None:
            metrics_server.update()

    try:
        with _sigterm_interrupts():
            messages.say(
                f"listening at {'http' if tls is None else 'https'}://{host}:{server.port}"
            )
            if metrics is not None:
                from dpmesh.deploy.metrics import RouterMetrics

                metrics_server = RouterMetrics(server.router, metrics)
                messages.say(metrics_server.address)
            server.run(on_progress)
    except KeyboardInterrupt:
        messages.say("interrupted; the same command goes on, and nodes answer the same bits")
        raise typer.Exit(130) from None
    failure = server.router.failure
    if failure:
        messages.fail(f"the run ends early, as too few parties are left ({failure})")
        raise typer.Exit(3)
    missing = ", ".join(server.router.missing)
    messages.say(f"the run is over{f'; missing at the end: {missing}' if missing else ''}")


def _fail_to_listen(error: OSError, host: str, port: int) -> NoReturn:
    """Fail with the reason why a router cannot listen at an address; raise other errors as is."""
    if error.errno == EADDRINUSE:
        free = "a free one: end the program that listens there, perhaps another router"
        fail("--port", f"{free}, or choose another port", port)
    if error.errno in (EACCES, EPERM):
        fail("--port", "one that this user may listen at, such as 8443", port)
    if error.errno == EADDRNOTAVAIL or isinstance(error, gaierror):
        fail("--host", "an address of this machine, such as 127.0.0.1, or 0.0.0.0 for all", host)
    raise error


class _Progress:
    """Reporter of the rounds that a router or a node reaches, and of parties that a router awaits.

    Parameters
    ----------
    say
        Function that writes a message. Equal messages in succession are written once.
    """

    def __init__(self, say: Callable[[str], None] = typer.echo) -> None:
        self._write = say
        self._last_message = ""

    def report_round(self, node: Node) -> None:
        """Report a round that the node has answered."""
        if node.last_position is not None:
            self._reached(node.rounds, node.contract.terms.rounds)

    def __call__(self, router: Router) -> None:
        """Report the round of a router, or the parties for which it waits."""
        contract = router.contract
        if router.open_position is None:
            self._say(f"waiting for the signatures of {', '.join(router.waits_for)}")
        elif router.is_paused and router.waits_for:
            self._say(f"paused below the quorum: waiting for {', '.join(router.waits_for)}")
        else:
            self._reached(
                contract.planned.rounds_before(router.open_position.round), contract.terms.rounds
            )

    def _reached(self, t: int, total: int) -> None:
        """Report about every tenth part of the rounds."""
        rounds_between_messages = max(1, total // 10)
        if t % rounds_between_messages == 0:
            self._say(f"round {t} of {total}")

    def _say(self, message: str) -> None:
        """Write a message, unless it is the last one again."""
        if message != self._last_message:
            self._write(message)
            self._last_message = message
