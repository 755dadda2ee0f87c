"""``dpmesh contract``, ``dpmesh node`` and ``dpmesh router``: one model between several parties."""

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
    from dpmesh.deploy import Folder, Node, Router

_INSECURE = "Allow plain HTTP off the loopback address: others can read."
_METRICS = "Serve /health and /metrics (Prometheus) at this port of 127.0.0.1."
_MODULE = "Your Python module, whose algorithm the contract names."

File = Annotated[Path, typer.Argument(help="The contract, a TOML file.")]
Insecure = Annotated[
    bool, typer.Option("--insecure", help=_INSECURE, rich_help_panel=options.CONNECTION)
]
Own = Annotated[Path, typer.Argument(help="Your folder, which dpmesh contract keys made.")]
Module = Annotated[
    str | None,
    typer.Option(
        help=_MODULE, callback=options.import_from_this_folder, rich_help_panel=options.OPERATION
    ),
]
Metrics = Annotated[
    int | None, typer.Option(help=_METRICS, min=0, max=65535, rich_help_panel=options.OPERATION)
]

_NEW = typer.Argument(help="The party's folder, which must not exist.")
_MOST = typer.Option(help="The most that its records may cost, in all.")
_LOST = typer.Option(help="A contract that a lost folder of these records had joined; repeat it.")
_REHEARSED = typer.Option(help="Folder with a file of records for each party, named after it.")
_HASH = typer.Argument(help="Its hash, or the beginning, as status shows.")
_WROTE = typer.Argument(help="What dpmesh node wrote: a model, or answers (.json).")
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
    folder: Annotated[Path, _NEW],
    epsilon: Annotated[float, _MOST],
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

    read = read_contract(file, module)
    terms, algorithm = read.terms, read.algorithm
    parts = [algorithm, getattr(algorithm, "algorithm", None)]
    description = " of ".join(type(part).__name__ for part in parts if part)
    typer.echo(f"contract     {read.hash.hex()}")
    over = f" over {read.topology}" if read.topology is not None else ", a token that travels"
    adversary = "the router and all parties: all released messages may be public"
    secrets = read.planned.secrets_at(read.terms.rounds - 1)
    if secrets is not None:
        adversary = "the router, which sees all released messages, colluding with any"
        adversary = f"{adversary} {secrets.coalition} of the parties"
        if secrets.coalition == 0:
            adversary = "the router alone: another party can subtract the noise that it shares"
    sums = read.planned.first_sum
    if sums is not None:
        over = f", sums of {read.nodes} parties under masks, {sums.modulus_bits} bits a number"
        adversary = "the router, which sees only noisy sums, colluding with any"
        adversary = f"{adversary} {sums.colluding} of the parties"
        if sums.colluding == 0:
            adversary = "the router alone: another party can subtract its own noise"
    typer.echo(f"algorithm    {description}{over}; {terms.rounds} rounds of {read.dim} parameters")
    unit = "one record of a party, replaced by another"
    if read.algorithm.unit == "user":
        unit = "a party with all of its records, which sends noise alone if it is left out"
    typer.echo(f"unit         {unit}")
    typer.echo(f"adversary    {adversary}")
    for party in read.parties:
        cost = rounded_up(read.cost(party.delta))
        allowed = f"of {party.epsilon:g} allowed, at delta = {party.delta:g}"
        typer.echo(f"{party.name:<12} epsilon = {cost} {allowed}; {party.records} records")
    if read.tables.questions is None and not read.tables.classifies:
        typer.echo("calibration  none under a contract: totals of skewed targets are too low")
    for assumption in read.assumptions:
        typer.echo(f"assumption   {assumption}")
    for line in FaultTolerance.of(read).lines(read):
        typer.echo(line)
    with progress_bar(len(read.patterns.thorough_rounds), unit="round") as advance:
        played = read.patterns.check_thoroughly(on_round=lambda: advance(1))
    typer.echo(f"played       {played}")
    typer.echo(f"traffic      about {bytes_of_round(read):,} bytes a round through the router")


def rehearse(
    file: File, data: Annotated[Path | None, _REHEARSED] = None, module: Module = None
) -> None:
    """Run a contract on this machine, without a network, and compare with the simulator."""
    from dpmesh.deploy import read_contract
    from dpmesh.deploy.rehearsal import rehearse as run

    read = read_contract(file, module)
    folder = file.parent if data is None else data
    files = {}
    for party in read.parties:
        candidates = [path for path in sorted(folder.glob(f"{party.name}.*")) if path != file]
        if not candidates:
            fail("--data", f"a folder with a file such as {party.name}.csv", folder)
        files[party.name] = candidates[0]
    result = run(read, files, progress=_Progress())
    typer.echo(f"{result.bytes:,} bytes through the router")
    bits = "OTHER bits than"
    if result.equals_simulation:
        bits = "the same bits as"
    typer.echo(f"each party's released model has {bits} the simulator's")
    typer.echo("a rehearsal is not private: all noise comes from the contract's public key")


def status(folder: Own) -> None:
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


def leave(folder: Own, contract: Annotated[str, _HASH]) -> None:
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


def restored(folder: Own) -> None:
    """Charge all that a folder was charged once more, as it came from a backup."""
    from dpmesh._epsilons import rounded_up
    from dpmesh.deploy import Folder

    party_folder = Folder.open(folder, marks=marks_folder())
    party_folder.charge_again()
    cost = rounded_up(party_folder.cost())
    typer.echo(f"charged {folder} once more: epsilon = {cost} of {party_folder.budget}")
    party_folder.close()


def verify(file: Annotated[Path, _WROTE], contract: File, module: Module = None) -> None:
    """Check who signed a model, or answers, and that they are what was signed."""
    from dpmesh.deploy import read_contract
    from dpmesh.deploy.outcome import verified
    from dpmesh.tables.models import Model

    read = read_contract(contract, module)
    answers: Any = file.suffix == ".json" and read_json(file)
    origin = verified(answers or Model.load(file, network=read.tables.network), read)
    typer.echo(f"signed by {origin.party}, after {origin.rounds} of {read.terms.rounds} rounds")
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
    from dpmesh.cli._pages import write_answers
    from dpmesh.deploy import Folder, Node, read_contract
    from dpmesh.deploy.http import node_tls
    from dpmesh.deploy.http_node import Contact, LeftOutError, run_node, wait_for_router

    messages = MessageWriter(log_format)
    read = read_contract(file, module)
    text_form = text_format(
        separator=separator,
        decimal=decimal,
        encoding=encoding,
        header=header,
        escape=escape,
        multiline=multiline,
        skip_empty=skip_empty_lines,
    )
    records = read.tables.read(data, text_form, drop=drop_missing_labels)
    tls = node_tls(certificate)
    if output is not None:
        writable_folder(output.absolute().parent)  # before anything is charged
    party_folder = Folder.open(folder, marks=marks_folder())
    if not party_folder.has_joined(read):
        try:
            with _sigterm_interrupts():
                wait_for_router(
                    read, party_folder.signing, router, tls, patience=patience, insecure=insecure
                )
        except LeftOutError as error:
            messages.fail(error)
            raise typer.Exit(3) from None
        except KeyboardInterrupt:
            messages.say("interrupted, with nothing charged; the same command starts again")
            raise typer.Exit(130) from None
    if restored:
        party_folder.charge_again()
    party = Node(read, party_folder, records)
    early = None
    contact = Contact()
    progress = _Progress(messages.say)
    shown = None
    if metrics is not None:
        from dpmesh.deploy.metrics import NodeMetrics

        shown = NodeMetrics(party, contact, metrics)
        messages.say(shown.address)

    def progressed(_: Node) -> None:
        progress.of_node(party)
        if shown is not None:
            shown.update()

    takes_part = f"{party.name} takes part; interrupt it whenever you like, and start it again"
    try:
        with _sigterm_interrupts():
            messages.say(takes_part)
            run_node(
                party,
                router,
                tls,
                progressed,
                patience=patience,
                insecure=insecure,
                contact=contact,
            )
    except LeftOutError as error:
        early = error
    except KeyboardInterrupt:
        without = " without --restored, which would charge again" if restored else ""
        messages.say(f"interrupted; the same command goes on{without}")
        raise typer.Exit(130) from None
    finally:
        scope = f"for this contract, at delta = {party_folder.budget.delta:g}"
        messages.say(f"charged so far: {_charged(party_folder, read)} {scope}")
    if early is None and not party.is_sealed:
        early = LeftOutError(f"{party.name}: not sealed, as too few others have the same end")
    asks = read.tables.questions is not None
    if early is None and party.ended_early:
        where = f"after {party.rounds} of {read.terms.rounds} rounds"
        ended = f"the run ended early for all parties, {where}: too few may release more"
        if asks or party.released is None:
            partial = False
            early = LeftOutError(f"{ended}; there is nothing to write")
        else:
            messages.say(ended)
    if output is not None and (early is None or (partial and party.released is not None)):
        try:
            if asks:
                answers = party.statistics()
                messages.say(str(answers))
                write_answers(output, answers)
            else:
                party.model().save(output)
        except OSError:
            messages.say("nothing is lost: the same command writes it later, and charges nothing")
            raise
        if not asks:
            made_of = "rows" if read.planned.first_sum is None else "sums"
            messages.say(f"wrote {output}: made of released {made_of} alone")
        party_folder.note_output(read, output)
    if early is not None:
        messages.fail(early)
        raise typer.Exit(3)


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
    """Return what a contract was charged in a folder, of what is reserved for it, in words."""
    from dpmesh._epsilons import rounded_up

    spent = folder.spent(agreement)
    reserved = rounded_up(folder.reserved(agreement).epsilon)
    return (
        f"epsilon = {0 if spent is None else rounded_up(spent.epsilon)} of the {reserved} reserved"
    )


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
    read = read_contract(file, module)
    if key is not None and certificate is None:
        fail("certificate", "that of the key", "none")
    tls = None if certificate is None else server_tls(certificate, key)
    try:
        server = RouterServer(Router(read), host, port, tls, insecure=insecure)
    except OSError as error:
        _fail_to_listen(error, host, port)
    progress = _Progress(messages.say)
    shown = None

    def progressed(_: Router) -> None:
        progress(server.router)
        if shown is not None:
            shown.update()

    try:
        with _sigterm_interrupts():
            messages.say(
                f"listening at {'http' if tls is None else 'https'}://{host}:{server.port}"
            )
            if metrics is not None:
                from dpmesh.deploy.metrics import RouterMetrics

                shown = RouterMetrics(server.router, metrics)
                messages.say(shown.address)
            server.run(progressed)
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
    """Say why nobody can listen at an address, and what to do."""
    if error.errno == EADDRINUSE:
        free = "a free one: end the program that listens there, perhaps another router"
        fail("--port", f"{free}, or choose another port", port)
    if error.errno in (EACCES, EPERM):
        fail("--port", "one that this user may listen at, such as 8443", port)
    if error.errno == EADDRNOTAVAIL or isinstance(error, gaierror):
        fail("--host", "an address of this machine, such as 127.0.0.1, or 0.0.0.0 for all", host)
    raise error


class _Progress:
    """Reports when a router or a node reaches another round, and for whom a router waits."""

    def __init__(self, say: Callable[[str], None] = typer.echo) -> None:
        self._write = say
        self._said = ""

    def of_node(self, node: Node) -> None:
        """Report a round that the node has answered."""
        if node.last_position is not None:
            self._reached(node.rounds, node.contract.terms.rounds)

    def __call__(self, router: Router) -> None:
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
        if t % max(1, total // 10) == 0:
            self._say(f"round {t} of {total}")

    def _say(self, now: str) -> None:
        if now != self._said:
            self._write(now)
            self._said = now
