"""A party's folder: its keys, its budget, and for each contract its state, ledger and answers.

It belongs to one data set. Two contracts in one folder share its budget. Never restore it from a
backup, and never copy it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory

from dpmesh._files import sync, writable_folder
from dpmesh._validate import fail, positive, probability
from dpmesh.deploy import private_file
from dpmesh.deploy.marks import Joined, Marks
from dpmesh.deploy.signing import SigningKey
from dpmesh.deploy.steps import LEFT, Agreement, Known, Steps
from dpmesh.deploy.wire import BEFORE, Position, Sent
from dpmesh.keys import Key
from dpmesh.privacy.budget import Budget, OverBudget
from dpmesh.privacy.cost import Cost
from dpmesh.privacy.filters import adaptive_cost
from dpmesh.privacy.plan import Plan, made_again, total_cost
from dpmesh.privacy.shown import ROUNDING, rounded_up

_TABLES = """
create table party (epsilon real, delta real, over integer);
create table contracts (
    hash blob primary key, plan text, records text, seeded integer, incarnation integer,
    stopped integer
);
create table steps (
    contract blob, round integer, exchange integer, rows blob, charged text, state blob, row blob,
    released blob,
    primary key (contract, round, exchange)
);
create table heard (
    contract blob, party integer, incarnation integer, round integer, exchange integer, row blob,
    primary key (contract, party)
);
"""
_LATER = """
create table if not exists secrets (contract blob primary key, secrets blob);
create table if not exists events (contract blob, event text, primary key (contract, event));
"""
"""Secrets of runs that are not over, and what folders of an earlier version did not do."""
_ERASED = "update secrets set secrets = x'' where contract = ?"
_LATE, _RETURNED = "joined after a release", "returned budget"
_SHARED, _LOST = "others hold its records", "joined by a lost folder"
_OUTSIDE = "released outside of contracts"
DATABASE, SIGNING, NOISE = "node.db", "signing.pem", "noise.key"


class Folder(Steps):
    """A party's folder, held by this process until it is closed.

    Use `create` once, then `open`.
    """

    def __init__(self, path: Path, marks: Path | None = None) -> None:
        self.signing, self.key = SigningKey.load(path / SIGNING), Key.load(path / NOISE)
        super().__init__(private_file.connect(path / DATABASE))
        self._file.executescript(f"begin; {_LATER} commit;")
        mark = None if marks is None else marks / f"{self.signing.public.hex()}.db"
        try:
            self._marks = Marks(mark)
        except ValueError as error:
            self._file.close()
            raise ValueError(f"{path}: a copy of this folder is in use ({error})") from None
        ((epsilon, delta),) = self._read("select epsilon, delta from party")
        self.budget = Budget(epsilon, delta=delta)
        self._vouched = set(self._marks.all())
        for contract in self._marks.left() & self._joined().keys():
            self._leave(contract)  # if it was killed before the folder was changed

    @classmethod
    def create(
        cls,
        path: str | Path,
        *,
        epsilon: float,
        delta: float,
        lost: Iterable[Agreement] = (),
        marks: Path | None = None,
    ) -> Folder:
        """Make the folder of a party that has none.

        Parameters
        ----------
        path
            Its path.
        epsilon, delta
            The most that the party's records may cost, over all contracts.
        lost
            Contracts that the party joined with a folder that is lost: each is charged in whole.
        marks
            As in `open`.

        Raises
        ------
        FileExistsError
            If there is one.
        """
        positive("epsilon", epsilon)
        probability("delta", delta, one=False)
        path = Path(path)
        if (path / DATABASE).exists():
            raise FileExistsError(f"{path}: there is a party's folder, which nothing replaces")
        parent = writable_folder(path.absolute().parent)
        with TemporaryDirectory(dir=parent, prefix=f".{path.name}.") as place:  # whole, or not
            new = Path(place) / path.name
            new.mkdir(0o700)
            file = private_file.create(new / DATABASE, _TABLES)
            with file:
                file.execute("insert into party values (?, ?, 0)", (epsilon, delta))
            file.close()
            SigningKey.generate().save(new / SIGNING)
            Key.generate().save(new / NOISE)
            made = cls(new, marks)
            for contract in lost:
                made.join(contract, "", seeded=False)
            with made.transaction():
                for contract in lost:
                    made._note(contract.hash, _LOST)
            made.close()
            for each in (*new.iterdir(), new):
                sync(each)
            new.rename(path)
        sync(parent)
        return cls(path, marks)

    @classmethod
    def open(cls, path: str | Path, *, marks: Path | None = None) -> Folder:
        """Open a party's folder.

        Parameters
        ----------
        path
            Its path.
        marks
            A folder outside of it, for marks of what it joined and answered last: they show when
            this folder was restored from an older copy on the same machine. With None they end
            with this process.

        Raises
        ------
        FileNotFoundError
            If there is none.
        ValueError
            If another process holds it, or a copy of it with the same marks.
        """
        if not (Path(path) / DATABASE).exists():
            make = f"dpmesh contract keys {path} --epsilon E"
            raise FileNotFoundError(f"{path}: there is no party's folder; make one: {make}")
        return cls(Path(path), marks)

    def close(self) -> None:
        """Let another process open it."""
        self._file.close()
        self._marks.close()

    def join(self, contract: Agreement, records: str, *, seeded: bool) -> None:
        """Reserve the whole cost of a contract, unless that is done.

        Parameters
        ----------
        contract
            The contract.
        records
            A digest of the party's records, in their order.
        seeded
            Whether the noise is that of a rehearsal.

        Raises
        ------
        OverBudget
            If the budget has no room for it beside the contracts joined before.
        ValueError
            If the party joined this contract with other records, or other keys, or left it, or if
            this folder is older than its marks: it was restored.
        """
        self._check_marks()
        if self.has_left(contract):
            fail("contract", "one that this folder has not left: that is for ever", "a left one")
        joined = Joined(json.dumps(contract.plan.as_dict()), records, seeded)
        with self.transaction():
            known = self._joined().get(contract.hash)
            if known is None:
                self._require(contract.plan)
                self._note(contract.hash, *[_LATE] * self._has_released)
                self._note(contract.hash, *[_SHARED] * (contract.copies > 1))
                self._vouched.add(contract.hash)
                row = contract.hash, *joined, 0, 0
                self._file.execute("insert into contracts values (?, ?, ?, ?, ?, ?)", row)
            elif known.records != records:
                wanted = "those with which the contract was joined, in their order"
                fail("records", wanted, "others")
            elif known.seeded != seeded:
                fail("rehearsal", "the same as when the contract was joined", seeded)
        self._marks.put(contract.hash, joined, self.last_sent(contract.hash))

    def spend(self, release: Agreement) -> None:
        """Charge, once, what is released of these records outside of contracts.

        It counts as if it had been planned before the first release.

        Raises
        ------
        OverBudget
            If the budget has no room for it: then nothing may be published.
        """
        self.join(release, "", seeded=False)
        with self.transaction():
            self._note(release.hash, _OUTSIDE)

    def _joined(self) -> dict[bytes, Joined]:
        found = self._read("select hash, plan, records, seeded from contracts")
        return {contract: Joined(*joined) for contract, *joined in found}

    def _require(self, plan: Plan) -> None:
        cost = self.cost(plan)
        if cost == inf and self._has_released:
            wanted = "one planned before the first release, or Gaussian noise on all data in every"
            fail("contract", f"{wanted} contract: for others no filter is proved", "another")
        if cost > self.budget.epsilon * (1 + ROUNDING):
            wanted = f"joining costs epsilon {rounded_up(cost)} with the contracts before it"
            raise OverBudget(f"{wanted}, more than the budget of {self.budget}")

    def cost(self, more: Plan | None = None) -> float:
        """Return the epsilon of all contracts joined so far, and of one more plan beside.

        A contract that was left counts with what it was charged, if the rest returned to the
        budget. Once a contract was joined, or returned budget, after a release, a filter counts:
        see `adaptive_cost`.
        """
        plans = [*self._plans(self._events(_RETURNED)), *([] if more is None else [more])]
        if not plans:
            return 0.0
        if (more is not None or self._events(_LATE)) and self._has_released:
            return adaptive_cost(plans, self.budget)
        return total_cost(plans, self.budget.delta).epsilon

    def _plans(self, returned: set[bytes]) -> list[Plan]:
        """Return what each contract is counted with, if these returned their budget."""
        plans: list[Plan] = []
        for known in self.contracts():
            again, plan = self.incarnation(known.hash), known.plan
            if known.hash in returned and not again:
                ledger = self.ledger(known)
                begun = ledger.releases and plan.allocations  # a part of one has no proof
                plan = plan if begun else ledger
            plans += made_again(*(1 + again) * [plan])
        return plans

    def contracts(self) -> list[Known]:
        """Return the contracts that were joined, in that order."""
        found = self._read("select hash, plan from contracts order by rowid")
        return [Known(contract, Plan.from_dict(json.loads(plan))) for contract, plan in found]

    @property
    def _has_released(self) -> bool:
        """Whether anything was charged, here or where this folder cannot see it."""
        return bool(self._read("select 1 from steps where charged != '[]'")) or self._is_partial

    @property
    def _is_partial(self) -> bool:
        """Whether others may have released what this folder does not know: it was restored, too."""
        elsewhere = self._events(_SHARED) | self._events(_LOST)
        return bool(elsewhere or self._read("select 1 from contracts where incarnation > 0"))

    def leave(self, contract: Agreement) -> None:
        """Leave a contract for ever.

        What it was not charged returns to the budget if nothing was released yet, or else if a
        filter counts all contracts, this one in whole, within the budget: whether to leave may then
        depend on what was released. Nothing returns to a folder that was restored, that is a copy
        or stands in for a lost one, or whose records other parties hold, too.
        """
        self._marks.leave(contract.hash)
        self._leave(contract.hash)

    def _leave(self, contract: bytes) -> None:
        with self.transaction():
            if contract not in self._events(LEFT):
                self._note(contract, LEFT, *self._returns(contract))
                self._file.execute(_ERASED, (contract,))

    def _returns(self, contract: bytes) -> list[str]:
        """Return what to note if a contract that is left returns budget; nothing if it does not."""
        _, marked = self._marks.all().get(contract, (None, None))
        unknown = self._is_partial or contract not in self._vouched
        if unknown or self._events(_OUTSIDE) or marked != self.last_sent(contract):
            return []
        if not self._has_released:
            return [_RETURNED]
        returned = self._events(_RETURNED)
        try:
            whole = adaptive_cost(self._plans(returned), self.budget)
            left = adaptive_cost(self._plans(returned | {contract}), self.budget)
        except ValueError:  # of a ledger in too many parts
            return []
        counts = whole <= self.budget.epsilon * (1 + ROUNDING) and left < inf
        return [_RETURNED, _LATE] if counts else []

    def spent(self, contract: Agreement) -> Cost | None:
        """Return what one contract cost so far, at the budget's delta; None if nothing.

        Each time the folder was restored, the contract is charged in whole once more.
        """
        ledger, again = self.ledger(contract), self.incarnation(contract.hash)
        plans = [*again * [contract.plan], *([ledger] if ledger.releases else [])]
        return total_cost(made_again(*plans), self.budget.delta) if plans else None

    def reserved(self, contract: Agreement) -> Cost:
        """Return what a contract that was joined may cost in all, at the budget's delta."""
        charged = 1 + self.incarnation(contract.hash)
        return total_cost(made_again(*charged * [contract.plan]), self.budget.delta)

    def incarnation(self, contract: bytes) -> int:
        """How often this folder was restored since it joined a contract."""
        ((again,),) = self._read("select incarnation from contracts where hash = ?", contract)
        return int(again)

    def is_seeded(self, contract: Agreement) -> bool:
        """Whether the noise of a contract is that of a rehearsal."""
        return bool(self._joined()[contract.hash].seeded)

    def last_sent(self, contract: bytes) -> Sent:
        """Return what this folder knows to have released last."""
        query = "select round, exchange from steps where contract = ? and row is not null"
        found = self._read(f"{query} order by round desc, exchange desc limit 1", contract)
        return Sent(self.incarnation(contract), Position(*found[0]) if found else BEFORE)

    def mark(self, contract: Agreement) -> None:
        """Mark the last answer outside of the folder."""
        self._marks.move(contract.hash, self.last_sent(contract.hash))

    def _check_marks(self) -> None:
        """Fail if this folder has forgotten a contract or an answer that a mark knows of."""
        known = self._joined()
        for contract, (_, marked) in self._marks.all().items():
            if contract not in known or self.last_sent(contract) < marked:
                got = "an older copy. Use --restored, which charges all contracts once more"
                fail("folder", "the one that answered last on this machine", got)

    def restored(self) -> None:
        """Charge every contract in whole once more: this folder is a copy of an older one.

        Contracts that it has forgotten and its marks know of are charged, too.
        """
        marked = self._marks.all()
        with self.transaction():
            known = self._joined()
            for contract in marked.keys() - known.keys():
                self._note(contract, _LATE)
            insert = "insert or ignore into contracts values (?, ?, ?, ?, ?, 0)"
            later = "update contracts set incarnation = max(incarnation, ?) where hash = ?"
            for contract, (joined, last) in marked.items():
                self._file.execute(insert, (contract, *joined, last.incarnation))
                self._file.execute(later, (last.incarnation, contract))
            self._file.execute("update contracts set incarnation = incarnation + 1")
            over = self.cost() > self.budget.epsilon * (1 + ROUNDING)
            self._file.execute("update party set over = ?", (over,))
        for contract, joined in self._joined().items():
            self._marks.put(contract, joined, self.last_sent(contract))

    @property
    def is_over_budget(self) -> bool:
        """Whether the contracts cost more than the budget, as they may once it was restored."""
        ((over,),) = self._read("select over from party")
        return bool(over)

    def stop(self, contract: Agreement) -> None:
        """Never compute a step of this contract again."""
        with self.transaction():
            query = "update contracts set stopped = 1 where hash = ?"
            self._file.execute(query, (contract.hash,))

    def has_stopped(self, contract: Agreement) -> bool:
        """Whether a step failed after it was charged."""
        ((stopped,),) = self._read("select stopped from contracts where hash = ?", contract.hash)
        return bool(stopped)

    def state_of(self, contract: Agreement) -> str:
        """Return in words whether a contract goes on."""
        last = self.last(contract)
        if self.has_left(contract):
            return "left"
        if self.has_stopped(contract):
            return "stopped: a step failed after it was charged; the node's log says why"
        if last is None:
            return "joined; waits for the first question of its router"
        return f"waits for its router after round {last.at.round}"

    def secrets(self, contract: Agreement, new: Callable[[], bytes]) -> bytes:
        """Return the secrets of a contract's run, which are made once; empty if it is over."""
        with self.transaction():
            found = self._read("select secrets from secrets where contract = ?", contract.hash)
            if not found:
                made = (contract.hash, new())
                self._file.execute("insert into secrets values (?, ?)", made)
                return made[1]
        return bytes(found[0][0])

    def erase_secrets(self, contract: Agreement) -> None:
        """Erase the secrets of a run that is over, for ever."""
        self._file.execute(_ERASED, (contract.hash,))

    def fresh(self, contract: Agreement) -> bytes:
        """Return the number with which the node asks others since its start."""
        return self._marks.fresh(contract.hash)

    def confirmed(self, contract: Agreement) -> None:
        """Never ask with that number again."""
        self._marks.confirmed(contract.hash)
