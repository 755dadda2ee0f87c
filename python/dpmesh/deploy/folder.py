"""A party's folder: its keys, its budget, and for each contract its state, ledger and answers.

It belongs to one data set. Two contracts in one folder share its budget. Never restore it from a
backup, and never copy it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

from dpmesh._epsilons import ROUNDING, rounded_up
from dpmesh._files import sync, writable_folder
from dpmesh._validate import fail, positive, probability
from dpmesh.deploy.files import Joined, Marks, PrivateFile
from dpmesh.deploy.signing import SigningKey
from dpmesh.deploy.steps import ERASED, FINISHED, LEFT, Agreement, Known, Steps
from dpmesh.deploy.wire import BEFORE, Position, Sent
from dpmesh.keys import Key
from dpmesh.privacy.budget import Budget, OverBudget
from dpmesh.privacy.cost import Cost
from dpmesh.privacy.filters import adaptive_cost
from dpmesh.privacy.plan import Plan, made_again, total_cost

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
create table if not exists signatures (
    contract blob, party integer, message blob, primary key (contract, party)
);
"""
"""Secrets of runs that are not over, and what folders of an earlier version did not do."""
_LATE = "joined after a release"
_SHARED = "others hold its records"
_LOST = "joined by a lost folder"
_UNSIGNED = "signed nothing"
"""A contract that was joined, under which no word of this folder has left it yet."""
_OUTSIDE = "outside of contracts"
"""In the place of the records' digest, of what was released outside of contracts."""
WRITTEN = "wrote"
"""How an event begins that says where the result of a run was written."""
DATABASE, SIGNING, NOISE = "node.db", "signing.pem", "noise.key"


def check_owner_only(path: Path) -> None:
    """Refuse a file that other users can read or write, as ssh does; Windows has no such modes.

    Raises
    ------
    ValueError
        If its mode allows more than 0600.
    """
    mode = path.stat().st_mode & 0o777
    if os.name == "posix" and mode & 0o077:
        fail(str(path), f"mode 0600: others can read it (chmod 600 {path})", f"{mode:04o}")


class Folder(Steps):
    """A party's folder, held by this process until it is closed.

    Use `create` once, then `open`.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import dpmesh as dm
    >>> home = Path(tempfile.mkdtemp())
    >>> folder = dm.deploy.Folder.create(home / "north", epsilon=4, delta=1e-5)
    >>> len(folder.signing.public.hex())
    64
    >>> folder.close()
    """

    def __init__(self, path: Path, marks: Path | None = None) -> None:
        for name in (SIGNING, NOISE, DATABASE):
            check_owner_only(path / name)
        self.signing, self.key = SigningKey.load(path / SIGNING), Key.load(path / NOISE)
        super().__init__(path / DATABASE, _LATER)
        mark = None if marks is None else marks / f"{self.signing.public.hex()}.db"
        try:
            self.marks = Marks(mark)
        except ValueError as error:
            self._file.close()
            raise ValueError(f"{path}: a copy of this folder is in use ({error})") from None
        ((epsilon, delta),) = self._read("select epsilon, delta from party")
        self.budget = Budget(epsilon, delta=delta)
        for contract in self.marks.left() & self._joined().keys():
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
            raise FileExistsError(
                f"{path}: there is a party's folder; contract status shows its key"
            )
        parent = writable_folder(path.absolute().parent)
        with TemporaryDirectory(dir=parent, prefix=f".{path.name}.") as place:  # whole, or not
            new = Path(place) / path.name
            new.mkdir(0o700)
            file = PrivateFile(new / DATABASE, _TABLES)
            file.change("insert into party values (?, ?, 0)", epsilon, delta)
            file.close()
            SigningKey.generate().save(new / SIGNING)
            Key.generate().save(new / NOISE)
            folder = cls(new, marks)
            try:
                for contract in lost:
                    folder._join(contract, "", _LOST)
            finally:
                folder.close()
            for item in (*new.iterdir(), new):
                sync(item)
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
            If another process holds it, or a copy of it with the same marks, or if other users can
            read its keys.
        """
        if not (Path(path) / DATABASE).exists():
            make = f"dpmesh contract keys {path} --epsilon E"
            raise FileNotFoundError(f"{path}: there is no party's folder; make one: {make}")
        return cls(Path(path), marks)

    def close(self) -> None:
        """Release the lock of the folder, so that another process can open it."""
        super().close()
        self.marks.close()

    def join(self, contract: Agreement, records: str, *, seeded: bool) -> None:
        """Reserve the epsilon and delta of a contract's whole plan, unless they are reserved.

        Parameters
        ----------
        contract
            The contract.
        records
            A digest of the party's records, in their order.
        seeded
            True for a rehearsal, whose noise is seeded and NOT private.

        Raises
        ------
        OverBudget
            If the plan does not fit in what the contracts joined before leave of the budget.
        ValueError
            If the party joined this contract with other records or keys, or left it; or if the
            folder is older than its marks, since it was restored from a copy.
        """
        self._join(contract, records, seeded=seeded)

    def spend(self, release: Agreement) -> None:
        """Charge, once, what is released of these records outside of contracts.

        All that is charged later was chosen after a release.

        Raises
        ------
        OverBudget
            If the budget has no room for it: then nothing may be published.
        ValueError
            If another plan was charged under its name, or this folder was restored.
        """
        self._join(release, _OUTSIDE)

    def _join(
        self, contract: Agreement, records: str, event: str | None = None, *, seeded: bool = False
    ) -> None:
        self._check_marks()
        if self.has_left(contract):
            fail("contract", "one that this folder has not left: that is for ever", "a left one")
        joined = Joined(json.dumps(contract.plan.as_dict()), records, seeded)
        with self.transaction():
            stored = self._joined().get(contract.hash)
            if stored is None:
                late = self._has_released()
                self._require(contract.plan, late)
                events = (event or _UNSIGNED, _LATE if late else None)
                self._note(contract.hash, *filter(None, events))
                row = contract.hash, *joined, 0, 0
                self._file.execute("insert into contracts values (?, ?, ?, ?, ?, ?)", row)
            elif stored.records != records:
                expected = "those with which the contract was joined, in their order"
                fail("records", expected, "others")
            elif stored.seeded != seeded:
                fail("rehearsal", "the same as when the contract was joined", seeded)
            elif stored.plan != joined.plan and self._costs_more(contract.plan, stored):
                fail("plan", "no more than what was charged under this hash", "another plan")
            if contract.copies > 1:  # also if an earlier version joined it
                self._note(contract.hash, _SHARED)
        self.marks.put(contract.hash, stored or joined, self.last_sent(contract.hash))

    def _costs_more(self, plan: Plan, stored: Joined) -> bool:
        """Return True if a plan costs more than the one that was charged, beyond rounding.

        A contract names versions and modules, but not all that its plan is computed by.
        """
        if stored.records == _OUTSIDE:
            return True
        charged = Plan.from_dict(json.loads(stored.plan))
        cost, before = (
            total_cost([one_plan], self.budget.delta).epsilon for one_plan in (plan, charged)
        )
        return cost > before * (1 + 1e-9) or len(plan.releases) > len(charged.releases)

    def has_joined(self, contract: Agreement) -> bool:
        """Return True if this folder has reserved the cost of a contract."""
        return contract.hash in self._joined()

    def _joined(self) -> dict[bytes, Joined]:
        rows = self._read("select hash, plan, records, seeded from contracts")
        return {contract: Joined(*joined) for contract, *joined in rows}

    def _require(self, plan: Plan, late: bool) -> None:
        cost = self._cost([*self._plans(), plan], late)
        if not cost <= self.budget.epsilon * (1 + ROUNDING):
            excess = f"this costs epsilon {rounded_up(cost)} with what was charged before"
            chosen = ", as it is chosen after a release" if late else ""
            raise OverBudget(f"{excess}{chosen}, more than the budget of {self.budget}")

    def cost(self) -> float:
        """Return the epsilon of all that was charged so far, each contract in whole.

        Once something was charged after a release, filters count: see `adaptive_cost`.
        """
        return self._cost(self._plans(), late=False)

    def _cost(self, plans: list[Plan], late: bool) -> float:
        if not plans:
            return 0.0
        if late or self._events(_LATE):
            return adaptive_cost(plans, self.budget)
        return total_cost(plans, self.budget.delta).epsilon

    def _plans(self) -> list[Plan]:
        """Return the plans of all contracts, each once more for each time that it was restored."""
        times = [
            (agreement.plan, 1 + self.incarnation(agreement.hash)) for agreement in self.contracts()
        ]
        return [replanned for plan, count in times for replanned in made_again(*count * [plan])]

    def contracts(self) -> list[Known]:
        """Return the contracts that were joined, in that order."""
        rows = self._read("select hash, plan from contracts order by rowid")
        return [Known(contract, Plan.from_dict(json.loads(plan))) for contract, plan in rows]

    def _has_released(self) -> bool:
        """Return True if a release was charged here, or may have been made by another copy."""
        elsewhere = self._events(_SHARED) | self._events(_LOST)
        charged = "select 1 from steps where charged != '[]'"
        again = "select 1 from contracts where incarnation > 0 or records = ?"
        return bool(elsewhere or self._read(f"{charged} union {again}", _OUTSIDE))

    def _is_outside(self, contract: Agreement) -> bool:
        stored = self._joined().get(contract.hash)
        return stored is not None and stored.records == _OUTSIDE

    def leave(self, contract: Agreement) -> bool:
        """Leave a contract for ever. It stays charged in whole: a choice to leave returns nothing.

        A contract under which this folder has signed no word is undone, as if it had never been
        joined. Its marks must show that the folder was not restored.

        Returns
        -------
        Whether it was undone: then its cost is free again.

        Raises
        ------
        ValueError
            If it is a release outside of contracts, or the folder was restored.
        """
        if self._is_outside(contract):
            fail("contract", "a contract", "what dpmesh fit, stats or ranges released")
        if self._is_unsigned(contract):
            self._undo(contract.hash)
            return True
        self.marks.leave(contract.hash)
        self._leave(contract.hash)
        return False

    def _is_unsigned(self, contract: Agreement) -> bool:
        """Return True if nothing left this folder under a contract, by its table and its marks."""
        self._check_marks()
        never_sent = Sent(0, BEFORE)
        _, marked = self.marks.all().get(contract.hash, (None, None))
        has_signed = contract.hash not in self._events(_UNSIGNED)
        return not has_signed and marked == never_sent and self.last(contract) is None

    def _undo(self, contract: bytes) -> None:
        """Forget a contract: first its mark, as no mark may know what the folder does not."""
        self.marks.forget(contract)
        with self.transaction():
            for table in ("secrets", "events"):
                self._file.execute(f"delete from {table} where contract = ?", (contract,))
            self._file.execute("delete from contracts where hash = ?", (contract,))

    def signs(self, contract: Agreement) -> None:
        """Note that a word of this folder leaves it under a contract, before it does."""
        if contract.hash in self._events(_UNSIGNED):
            query = "delete from events where contract = ? and event = ?"
            self.change(query, contract.hash, _UNSIGNED)

    def _leave(self, contract: bytes) -> None:
        with self.transaction():
            self._note(contract, LEFT)
            self._file.execute(ERASED, (contract,))

    def spent(self, contract: Agreement) -> Cost | None:
        """Return what one contract cost so far, at the budget's delta; None if nothing.

        A release outside of contracts, which is stored like one, counts in whole.
        """
        if self._is_outside(contract):
            return self.reserved(contract)
        ledger = self.ledger(contract)
        again = self.incarnation(contract.hash)
        plans = [*again * [contract.plan], *([ledger] if ledger.releases else [])]
        if plans:
            return total_cost(made_again(*plans), self.budget.delta)
        return None

    def reserved(self, contract: Agreement, delta: float | None = None) -> Cost:
        """Return what a contract that was joined may cost in all, by default at the budget's delta.

        Each time the folder was restored, the contract is charged in whole once more.
        """
        charged = 1 + self.incarnation(contract.hash)
        plans = made_again(*charged * [contract.plan])
        return total_cost(plans, self.budget.delta if delta is None else delta)

    def incarnation(self, contract: bytes) -> int:
        """Return the number of times this folder was restored since it joined a contract."""
        ((again,),) = self._read("select incarnation from contracts where hash = ?", contract)
        return int(again)

    def is_seeded(self, contract: Agreement) -> bool:
        """Return True if the noise of a contract is that of a rehearsal."""
        return bool(self._joined()[contract.hash].seeded)

    def last_sent(self, contract: bytes) -> Sent:
        """Return what this folder knows to have released last."""
        query = "select round, exchange from steps where contract = ? and row is not null"
        rows = self._read(f"{query} order by round desc, exchange desc limit 1", contract)
        return Sent(self.incarnation(contract), Position(*rows[0]) if rows else BEFORE)

    def mark(self, contract: Agreement) -> None:
        """Mark the last answer outside of the folder."""
        self.marks.move(contract.hash, self.last_sent(contract.hash))

    def _check_marks(self) -> None:
        """Fail if this folder has forgotten a contract or an answer that a mark knows of."""
        stored = self._joined()
        for contract, (_, marked) in self.marks.all().items():
            if contract not in stored or self.last_sent(contract) < marked:
                got = "an older copy. Use --restored, or dpmesh contract restored, to charge again"
                fail("folder", "the one that answered last on this machine", got)

    def restored(self) -> None:
        """Charge every contract in whole once more: this folder is a copy of an older one.

        Contracts that it has forgotten and its marks know of are charged, too. A folder is restored
        after releases, so that filters count from now on.
        """
        marked = self.marks.all()
        with self.transaction():
            stored = self._joined()
            for contract in marked.keys() | stored.keys():
                self._note(contract, _LATE)
            for contract in self.marks.left():
                self._note(contract, LEFT)
            insert = "insert or ignore into contracts values (?, ?, ?, ?, ?, 0)"
            later = "update contracts set incarnation = max(incarnation, ?) where hash = ?"
            for contract, (joined, last) in marked.items():
                self._file.execute(insert, (contract, *joined, last.incarnation))
                self._file.execute(later, (last.incarnation, contract))
            self._file.execute("update contracts set incarnation = incarnation + 1")
            over = not self.cost() <= self.budget.epsilon * (1 + ROUNDING)
            self._file.execute("update party set over = ?", (over,))
        for contract, joined in self._joined().items():
            self.marks.put(contract, joined, self.last_sent(contract))

    @property
    def is_over_budget(self) -> bool:
        """True if the contracts exceed the budget, as they may once the folder was restored."""
        ((over,),) = self._read("select over from party")
        return bool(over)

    def state_of(self, contract: Agreement) -> str:
        """Return in words how far a contract has come, and how many releases it made."""
        last = self.last(contract)
        count = sum(self.attempts(contract).values())
        releases = f"{count} releases so far"
        finished = self._begins(contract, FINISHED)
        if self._is_outside(contract):
            return "released by dpmesh fit, stats or ranges"
        if self.has_left(contract):
            return f"left; {releases}"
        if finished:
            return f"{finished}; {self._begins(contract, WRITTEN) or 'wrote no model'}; {releases}"
        if self.has_stopped(contract):
            return f"stopped: a step failed after it was charged, see the node's log; {releases}"
        if last is None:
            return "joined; waits for the first question of its router"
        return f"waits for its router after round {last.at.round}; {releases}"

    def wrote(self, contract: Agreement, path: Path) -> None:
        """Record the path to which the result of a contract was written."""
        with self.transaction():
            self._note(contract.hash, f"{WRITTEN} {path.absolute()}")

    def _begins(self, contract: Agreement, word: str) -> str:
        """Return the last event of a contract that begins with a word; empty if there is none."""
        query = "select event from events where contract = ? and event like ? order by rowid desc"
        events = self._read(query, contract.hash, f"{word} %")
        if events:
            return str(events[0][0])
        return ""
