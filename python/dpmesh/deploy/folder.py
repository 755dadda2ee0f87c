"""A party's folder: its secret keys, its privacy budget, and the state of each contract it joined.

A folder belongs to one data set. All contracts in it share its budget. It must never be copied, nor
restored from a backup: an older copy does not know what was released since, so it charges less than
was spent, and its node could release the same steps again. *Marks* are a record of the folder's
last releases in a file outside of it (`dpmesh.deploy.files.Marks`): a folder that is older than its
marks is refused. *Events* are notes about a contract; its cost depends on some of them.
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
from dpmesh.deploy.files import JoinedContract, Marks, PrivateFile
from dpmesh.deploy.signing import SigningKey
from dpmesh.deploy.steps import ERASE_SECRETS, FINISHED, LEFT, AnyContract, KnownContract, Steps
from dpmesh.deploy.wire import BEFORE, Position, ReleaseIndex
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
_ADDED_TABLES = """
create table if not exists secrets (contract blob primary key, secrets blob);
create table if not exists events (contract blob, event text, primary key (contract, event));
create table if not exists signatures (
    contract blob, party integer, message blob, primary key (contract, party)
);
"""
"""Tables that folders of earlier versions lack."""
_AFTER_RELEASE = "joined after a release"
"""Event of a contract that was joined after a release: it may be chosen by what was released."""
_SHARED = "others hold its records"
"""Event of a contract in which other parties may have the same records."""
_LOST = "joined by a lost folder"
"""Event of a contract that a lost folder had joined, which may have released anything under it."""
_UNSIGNED = "signed nothing"
"""Event of a contract under which no signature has left this folder; it is erased by the first."""
_OUTSIDE = "outside of contracts"
"""Digest of the records of a release outside of contracts, which is stored like a contract."""
WRITTEN = "wrote"
"""First word of the event with the path of a run's result."""
DATABASE = "node.db"
SIGNING = "signing.pem"
NOISE = "noise.key"


def check_owner_only(path: Path) -> None:
    """Refuse a file that other users can read or write; Windows has no such modes.

    Raises
    ------
    ValueError
        If its mode allows anything to the group or to others.
    """
    mode = path.stat().st_mode & 0o777
    if os.name == "posix" and mode & 0o077:
        fail(str(path), f"mode 0600: others can read it (chmod 600 {path})", f"{mode:04o}")


class Folder(Steps):
    """A party's folder, which no other process can open until it is closed.

    `Folder.create` makes it once, `Folder.open` opens it. A `Node` runs on it, and the commands
    ``dpmesh contract`` print or change it. What is charged, stored or left is durable when a method
    returns; of the methods of `Steps` that run within a transaction, when the transaction ends. The
    signing key, the key of the noise, the secrets of runs and states never leave the folder.

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
        self.signing = SigningKey.load(path / SIGNING)
        """The party's signing key, whose public half is in its contracts."""
        self.key = Key.load(path / NOISE)
        """The party's secret key of the noise on its rows. The noise of sums, and the noise shared
        with a partner, come from the secrets of a run."""
        super().__init__(path / DATABASE, _ADDED_TABLES)
        marks_file = None
        if marks is not None:
            marks_file = marks / f"{self.signing.public.hex()}.db"
        try:
            self.marks = Marks(marks_file)
        except ValueError as error:
            self._file.close()
            raise ValueError(f"{path}: a copy of this folder is in use ({error})") from None
        ((epsilon, delta),) = self._read("select epsilon, delta from party")
        self.budget = Budget(epsilon, delta=delta)
        """The most that all contracts of the folder may cost together."""
        for contract in self.marks.left_contracts() & self._joined_contracts().keys():
            self._leave(contract)  # the process may have been killed before it changed the folder

    @classmethod
    def create(
        cls,
        path: str | Path,
        *,
        epsilon: float,
        delta: float,
        lost: Iterable[AnyContract] = (),
        marks: Path | None = None,
    ) -> Folder:
        """Make a new folder, with new keys, and open it.

        Parameters
        ----------
        path
            Path of the folder.
        epsilon, delta
            Privacy budget of the party's records, over all contracts.
        lost
            Contracts that the party joined in a folder that is lost: each is charged in whole.
        marks
            As in `open`.

        Raises
        ------
        FileExistsError
            If the path has a folder already.
        OverBudget
            If the lost contracts exceed the budget.
        """
        positive("epsilon", epsilon)
        probability("delta", delta, one=False)
        path = Path(path)
        if (path / DATABASE).exists():
            raise FileExistsError(
                f"{path}: there is a party's folder; contract status shows its key"
            )
        parent = writable_folder(path.absolute().parent)
        with TemporaryDirectory(dir=parent, prefix=f".{path.name}.") as parent_of_new:
            new = Path(parent_of_new) / path.name  # renamed once it is complete
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
            Path of the folder.
        marks
            A folder outside of it for its `Marks`, which show if this folder was restored from an
            older copy on the same machine. None keeps them in memory, until this process ends.

        Raises
        ------
        FileNotFoundError
            If the path has no folder of a party.
        ValueError
            If another process has opened it, or a copy with the same marks, or if other users can
            read its keys.
        """
        if not (Path(path) / DATABASE).exists():
            make = f"dpmesh contract keys {path} --epsilon E"
            raise FileNotFoundError(f"{path}: there is no party's folder; make one: {make}")
        return cls(Path(path), marks)

    def close(self) -> None:
        """Close the folder, so that another process can open it."""
        super().close()
        self.marks.close()

    def join(self, contract: AnyContract, records: str, *, seeded: bool) -> None:
        """Join a contract: charge its whole plan to the budget, unless it is charged already.

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
            If the plan exceeds what earlier contracts left of the budget.
        ValueError
            If the party joined this contract with other records, or left it; or if the folder is
            older than its marks.
        """
        self._join(contract, records, seeded=seeded)

    def spend(self, release: AnyContract) -> None:
        """Charge a release of these records outside of contracts, once, before it is published.

        Parameters
        ----------
        release
            The plan of the release, under a hash that stands for it alone.

        Raises
        ------
        OverBudget
            If the budget has no room for it: then nothing may be published.
        ValueError
            If another plan was charged under the same hash, or the folder is older than its marks.
        """
        self._join(release, _OUTSIDE)

    def _join(
        self, contract: AnyContract, records: str, event: str = _UNSIGNED, *, seeded: bool = False
    ) -> None:
        """Charge a contract, or compare it with what was charged under its hash.

        Parameters
        ----------
        contract
            The contract, or a release outside of contracts.
        records
            A digest of the party's records.
        event
            The event of a contract that is charged for the first time.
        seeded
            True for a rehearsal.
        """
        self._check_marks()
        if self.has_left(contract):
            fail("contract", "one that this folder has not left: that is for ever", "a left one")
        joined = JoinedContract(json.dumps(contract.plan.as_dict()), records, seeded)
        with self.transaction():
            stored = self._joined_contracts().get(contract.hash)
            if stored is None:
                self._charge(contract, joined, event)
            else:
                self._compare(contract, joined, stored)
            if contract.copies > 1:  # folders of an earlier version may lack the event
                self._add_events(contract.hash, _SHARED)
        self.marks.write(contract.hash, stored or joined, self.last_sent(contract.hash))

    def _charge(self, contract: AnyContract, joined: JoinedContract, event: str) -> None:
        """Charge a contract, within a transaction, if the budget has room for it."""
        is_after_release = self._has_released()
        self._require(contract.plan, is_after_release)
        self._add_events(contract.hash, event)
        if is_after_release:
            self._add_events(contract.hash, _AFTER_RELEASE)
        incarnation = 0  # the folder was not restored since
        stopped = 0  # no step has failed
        row = (contract.hash, *joined, incarnation, stopped)
        self._file.execute("insert into contracts values (?, ?, ?, ?, ?, ?)", row)

    def _compare(
        self, contract: AnyContract, joined: JoinedContract, stored: JoinedContract
    ) -> None:
        """Fail unless a contract is the one that was charged, with the same records."""
        if stored.records != joined.records:
            expected = "those with which the contract was joined, in their order"
            fail("records", expected, "others")
        if stored.seeded != joined.seeded:
            fail("rehearsal", "the same as when the contract was joined", joined.seeded)
        if stored.plan != joined.plan and self._costs_more(contract.plan, stored):
            fail("plan", "no more than what was charged under this hash", "another plan")

    def _costs_more(self, plan: Plan, stored: JoinedContract) -> bool:
        """Return True if a plan costs more than the one that was charged, beyond rounding.

        Two plans of one contract differ if another package computed them, such as another NumPy.
        """
        if stored.records == _OUTSIDE:
            return True
        charged = Plan.from_dict(json.loads(stored.plan))
        epsilon = total_cost([plan], self.budget.delta).epsilon
        charged_epsilon = total_cost([charged], self.budget.delta).epsilon
        has_more_releases = len(plan.releases) > len(charged.releases)
        return epsilon > charged_epsilon * (1 + 1e-9) or has_more_releases

    def has_joined(self, contract: AnyContract) -> bool:
        """Return True if this folder was charged for a contract."""
        return contract.hash in self._joined_contracts()

    def _joined_contracts(self) -> dict[bytes, JoinedContract]:
        """Return the terms of all joined contracts and other releases, by hash."""
        rows = self._read("select hash, plan, records, seeded from contracts")
        return {contract: JoinedContract(*joined) for contract, *joined in rows}

    def _require(self, plan: Plan, is_after_release: bool) -> None:
        """Fail unless the budget has room for one more plan."""
        cost = self._cost([*self._plans(), plan], is_after_release)
        if not cost <= self.budget.epsilon * (1 + ROUNDING):
            excess = f"this costs epsilon {rounded_up(cost)} with what was charged before"
            chosen = ""
            if is_after_release:
                chosen = ", as it is chosen after a release"
            raise OverBudget(f"{excess}{chosen}, more than the budget of {self.budget}")

    def cost(self) -> float:
        """Return the epsilon of all that was charged so far, each contract in whole.

        Contracts that were chosen after a release are composed adaptively, by `adaptive_cost`.
        """
        return self._cost(self._plans(), is_after_release=False)

    def _cost(self, plans: list[Plan], is_after_release: bool) -> float:
        """Return the epsilon of plans; adaptively composed if one was chosen after a release."""
        if not plans:
            return 0.0
        if is_after_release or self._contracts_with_event(_AFTER_RELEASE):
            return adaptive_cost(plans, self.budget)
        return total_cost(plans, self.budget.delta).epsilon

    def _plans(self) -> list[Plan]:
        """Return the plans of all contracts, each once more for each time it was restored."""
        plans: list[Plan] = []
        for contract in self.contracts():
            plans += self._charged_plans(contract)
        return plans

    def _charged_plans(self, contract: AnyContract) -> tuple[Plan, ...]:
        """Return a contract's plan, once more for each time the folder was restored."""
        times = 1 + self.incarnation(contract.hash)
        return made_again(*[contract.plan] * times)

    def contracts(self) -> list[KnownContract]:
        """Return the joined contracts and other charged releases, in the order of their charge."""
        rows = self._read("select hash, plan from contracts order by rowid")
        return [
            KnownContract(contract, Plan.from_dict(json.loads(plan))) for contract, plan in rows
        ]

    def _has_released(self) -> bool:
        """Return True if these records were released, by this folder or perhaps elsewhere."""
        shared_or_lost = self._contracts_with_event(_SHARED) | self._contracts_with_event(_LOST)
        charged = "select 1 from steps where charged != '[]'"
        restored_or_outside = "select 1 from contracts where incarnation > 0 or records = ?"
        released = self._read(f"{charged} union {restored_or_outside}", _OUTSIDE)
        return bool(shared_or_lost or released)

    def _is_outside(self, contract: AnyContract) -> bool:
        """Return True if a hash stands for a release outside of contracts."""
        stored = self._joined_contracts().get(contract.hash)
        return stored is not None and stored.records == _OUTSIDE

    def leave(self, contract: AnyContract) -> bool:
        """Leave a contract for ever: the folder computes no step of it any more.

        The contract stays charged in whole, unless this folder has signed nothing under it: then it
        is forgotten, and its cost is free again.

        Returns
        -------
        True if the contract is forgotten.

        Raises
        ------
        ValueError
            If it is a release outside of contracts, or the folder is older than its marks.
        """
        if self._is_outside(contract):
            fail("contract", "a contract", "what dpmesh fit, stats or ranges released")
        if self._has_signed_nothing(contract):
            self._forget(contract.hash)
            return True
        self.marks.leave(contract.hash)
        self._leave(contract.hash)
        return False

    def _has_signed_nothing(self, contract: AnyContract) -> bool:
        """Return True if nothing left this folder under a contract, by its table and its marks."""
        self._check_marks()
        if contract.hash not in self._contracts_with_event(_UNSIGNED):
            return False
        mark = self.marks.by_contract().get(contract.hash)
        never_sent = ReleaseIndex(0, BEFORE)
        return mark is not None and mark.last == never_sent and self.last_step(contract) is None

    def _forget(self, contract: bytes) -> None:
        """Erase a contract.

        Its mark goes first: a mark of a contract that the folder does not have would refuse the
        folder as restored.
        """
        self.marks.forget(contract)
        with self.transaction():
            for table in ("secrets", "events"):
                self._file.execute(f"delete from {table} where contract = ?", (contract,))
            self._file.execute("delete from contracts where hash = ?", (contract,))

    def note_signature(self, contract: AnyContract) -> None:
        """Note that a signature under a contract is about to leave this folder."""
        if contract.hash in self._contracts_with_event(_UNSIGNED):
            statement = "delete from events where contract = ? and event = ?"
            self.change(statement, contract.hash, _UNSIGNED)

    def _leave(self, contract: bytes) -> None:
        """Note that a contract was left, and erase the secrets of its run."""
        with self.transaction():
            self._add_events(contract, LEFT)
            self._file.execute(ERASE_SECRETS, (contract,))

    def spent(self, contract: AnyContract) -> Cost | None:
        """Return the cost of a contract's releases so far, at the budget's delta; None without any.

        A release outside of contracts counts in whole. Each time that the folder was restored since
        it joined, the whole plan counts: what was released before is not known.
        """
        if self._is_outside(contract):
            return self.reserved(contract)
        ledger = self.ledger(contract)
        plans = [contract.plan] * self.incarnation(contract.hash)
        if ledger.releases:
            plans.append(ledger)
        if not plans:
            return None
        return total_cost(made_again(*plans), self.budget.delta)

    def reserved(self, contract: AnyContract, delta: float | None = None) -> Cost:
        """Return the cost that was charged for a joined contract, by default at the budget's delta.

        It is that of its whole plan, once more for each time the folder was restored.
        """
        if delta is None:
            delta = self.budget.delta
        return total_cost(self._charged_plans(contract), delta)

    def incarnation(self, contract: bytes) -> int:
        """Return the number of times this folder was restored since it joined a contract."""
        query = "select incarnation from contracts where hash = ?"
        ((restorations,),) = self._read(query, contract)
        return int(restorations)

    def is_seeded(self, contract: AnyContract) -> bool:
        """Return True if a contract was joined for a rehearsal, whose noise is NOT private."""
        return bool(self._joined_contracts()[contract.hash].seeded)

    def last_sent(self, contract: bytes) -> ReleaseIndex:
        """Return the position of the last release of this folder under a contract."""
        query = "select round, exchange from steps where contract = ? and row is not null"
        rows = self._read(f"{query} order by round desc, exchange desc limit 1", contract)
        position = BEFORE
        if rows:
            position = Position(*rows[0])
        return ReleaseIndex(self.incarnation(contract), position)

    def update_mark(self, contract: AnyContract) -> None:
        """Write the last release under a contract into its mark, outside of the folder."""
        self.marks.advance(contract.hash, self.last_sent(contract.hash))

    def _check_marks(self) -> None:
        """Fail if the folder lacks a contract or a release that its marks have."""
        joined = self._joined_contracts()
        for contract, mark in self.marks.by_contract().items():
            if contract not in joined or self.last_sent(contract) < mark.last:
                got = "an older copy. Use --restored, or dpmesh contract restored, to charge again"
                fail("folder", "the one that answered last on this machine", got)

    def charge_again(self) -> None:
        """Charge every contract in whole once more: the folder was restored from an older copy.

        Contracts that only its marks have are charged, too. All of them count as chosen after a
        release. The folder may be over its budget afterwards: see `is_over_budget`.
        """
        marks = self.marks.by_contract()
        with self.transaction():
            for contract in marks.keys() | self._joined_contracts().keys():
                self._add_events(contract, _AFTER_RELEASE)
            for contract in self.marks.left_contracts():
                self._add_events(contract, LEFT)
            insert = "insert or ignore into contracts values (?, ?, ?, ?, ?, 0)"
            later = "update contracts set incarnation = max(incarnation, ?) where hash = ?"
            for contract, mark in marks.items():
                self._file.execute(insert, (contract, *mark.joined, mark.last.incarnation))
                self._file.execute(later, (mark.last.incarnation, contract))
            self._file.execute("update contracts set incarnation = incarnation + 1")
            is_over = not self.cost() <= self.budget.epsilon * (1 + ROUNDING)
            self._file.execute("update party set over = ?", (is_over,))
        for contract, joined in self._joined_contracts().items():
            self.marks.write(contract, joined, self.last_sent(contract))

    @property
    def is_over_budget(self) -> bool:
        """True if a restored folder exceeds its budget: it then releases nothing any more."""
        ((is_over,),) = self._read("select over from party")
        return bool(is_over)

    def state_of(self, contract: AnyContract) -> str:
        """Return the state of a contract as a text, with the number of its releases."""
        if self._is_outside(contract):
            return "released by dpmesh fit, stats or ranges"
        count = sum(self.charged_steps(contract).values())
        releases = f"{count} releases so far"
        if self.has_left(contract):
            return f"left; {releases}"
        finished = self._last_event(contract, FINISHED)
        if finished:
            output = self._last_event(contract, WRITTEN) or "wrote no model"
            return f"{finished}; {output}; {releases}"
        if self.has_stopped(contract):
            return f"stopped: a step failed after it was charged, see the node's log; {releases}"
        last = self.last_step(contract)
        if last is None:
            return "joined; waits for the first question of its router"
        return f"waits for its router after round {last.position.round}; {releases}"

    def note_output(self, contract: AnyContract, path: Path) -> None:
        """Note the path of the file to which the result of a contract was written."""
        with self.transaction():
            self._add_events(contract.hash, f"{WRITTEN} {path.absolute()}")

    def _last_event(self, contract: AnyContract, first_word: str) -> str:
        """Return the last event of a contract with this first word; empty if there is none."""
        query = "select event from events where contract = ? and event like ? order by rowid desc"
        events = self._read(query, contract.hash, f"{first_word} %")
        if events:
            return str(events[0][0])
        return ""
