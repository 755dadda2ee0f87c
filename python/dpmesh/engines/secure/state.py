"""What a site keeps on its own disk: its ledger over all runs, and the present run's secrets.

One SQLite file, readable by its owner only, that one process holds at a time. A change is on the
disk before the call that makes it returns. Keep the file out of backups and snapshots: its secrets
open the site's old answers, down to its own share of noise.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path

from dpmesh._validate import fail, one_of, positive, probability
from dpmesh.engines.private_file import connect, create
from dpmesh.engines.secure.contract import Contract
from dpmesh.engines.secure.run_secrets import RunSecrets
from dpmesh.privacy.accounting.shares import sum_of_shares_epsilon
from dpmesh.privacy.secure import SecureSum

_TABLES = """
create table budget (epsilon real, delta real, relation text);
create table runs (run blob primary key, contract blob, numbers text, spent integer, state text);
"""
_NONE = b""


@dataclass(frozen=True)
class RunState:
    """A site's state in one run.

    Parameters
    ----------
    secrets
        None once the run is over.
    last_attempt
        The largest attempt that the site answered or heard of; -1 before the first.
    spent
        Releases that the run has been charged for.
    digest, answer
        The header that was answered last, by its digest, and the bytes of the answer.
    keys
        The public key of each site that was seen in this run.
    stopped
        Whether the site's own code failed, after which it takes part no more.
    """

    secrets: RunSecrets | None
    last_attempt: int = -1
    spent: int = 0
    digest: bytes = _NONE
    answer: bytes = _NONE
    keys: Mapping[int, bytes] | None = None
    stopped: bool = False

    def as_text(self) -> str:
        """Return it as JSON."""
        secrets = self.secrets
        return json.dumps(
            {
                "secrets": None
                if secrets is None
                else [secrets.agreement.hex(), secrets.own.hex()],
                "last_attempt": self.last_attempt,
                "spent": self.spent,
                "digest": self.digest.hex(),
                "answer": self.answer.hex(),
                "keys": {site: key.hex() for site, key in (self.keys or {}).items()},
                "stopped": self.stopped,
            }
        )

    @classmethod
    def from_text(cls, text: str) -> RunState:
        """Return what `as_text` wrote."""
        fields = json.loads(text)
        secrets = fields.pop("secrets")
        kept = None if secrets is None else RunSecrets(*map(bytes.fromhex, secrets))
        for name in ("digest", "answer"):
            fields[name] = bytes.fromhex(fields[name])
        fields["keys"] = {int(site): bytes.fromhex(key) for site, key in fields["keys"].items()}
        return cls(kept, **fields)


class SiteState:
    """The file of one site: use `create` once, then `open`.

    The ledger belongs to the site's records: it goes on over runs and contracts, and each run
    starts from what was spent.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._file = connection
        epsilon, delta, self._relation = connection.execute("select * from budget").fetchone()
        self.budget: tuple[float, float] = epsilon, delta

    @classmethod
    def create(
        cls,
        path: str | Path,
        *,
        epsilon: float,
        delta: float,
        neighboring_relation: str,
        lost: Iterable[Contract] = (),
    ) -> SiteState:
        """Make the file of a site that has none.

        Parameters
        ----------
        path
            Must not exist.
        epsilon, delta
            The budget of the site's records, over all runs.
        neighboring_relation
            That of all contracts.
        lost
            Contracts of runs whose ledger was lost: each counts as spent in whole.

        Raises
        ------
        FileExistsError
            If the file exists.
        """
        positive("epsilon", epsilon)
        probability("delta", delta, zero=False, one=False)
        one_of("neighboring_relation", neighboring_relation, ("replace_one", "add_remove"))
        connection = create(path, _TABLES)
        with connection:
            connection.execute(
                "insert into budget values (?, ?, ?)", (epsilon, delta, neighboring_relation)
            )
        state = cls(connection)
        for number, contract in enumerate(lost):
            spent = RunState(None, spent=contract.numbers.attempts)
            state.begin(b"lost %d" % number, contract, spent)
        return state

    @classmethod
    def open(cls, path: str | Path) -> SiteState:
        """Open the file of a site.

        Raises
        ------
        FileNotFoundError
            If there is none: a site that lost it counts its whole plan as spent, see `create`.
        ValueError
            If another process holds it.
        """
        if not Path(path).exists():
            raise FileNotFoundError(
                f"{path}: there is no ledger; make a new one with SiteState.create, and name the "
                "contracts of runs whose ledger was lost"
            )
        return cls(connect(path))

    def close(self) -> None:
        """Let another process open the file."""
        self._file.close()

    def begin(self, run: bytes, contract: Contract, state: RunState) -> None:
        """Keep the state of a new run."""
        numbers = contract.numbers
        if numbers.neighboring_relation != self._relation:
            wanted = f"a contract for {self._relation}, as all others of this ledger"
            fail("contract", wanted, numbers.neighboring_relation)
        kept = {
            "noise_multiplier": numbers.noise_multiplier,
            "share": numbers.share,
            "sites": numbers.sites,
            "dim": numbers.dim,
            "sampling_rate": numbers.sampling_rate,
        }
        with self._file:
            row = run, contract.fingerprint, json.dumps(kept), state.spent, state.as_text()
            self._file.execute("insert into runs values (?, ?, ?, ?, ?)", row)

    def read(self, run: bytes, contract: Contract) -> RunState | None:
        """Return the state of a run, None if it is new to the site.

        Raises
        ------
        ValueError
            If the run was begun under another contract.
        """
        query = "select state, contract from runs where run = ?"
        found = self._file.execute(query, (run,)).fetchone()
        if found is None:
            return None
        if found[1] != contract.fingerprint:
            fail("run", "one of this contract", "one of another contract")
        return RunState.from_text(found[0])

    def write(self, run: bytes, state: RunState) -> None:
        """Keep the state of a run, on the disk before this returns."""
        with self._file:
            row = state.spent, state.as_text(), run
            self._file.execute("update runs set spent = ?, state = ? where run = ?", row)

    def end(self, run: bytes, contract: Contract) -> None:
        """Erase the secrets and the last answer of a run; what it spent stays."""
        state = self.read(run, contract)
        if state is not None:
            self.write(run, replace(state, secrets=None, answer=_NONE))

    def epsilon(self, numbers: SecureSum | None = None, more: int = 0) -> float:
        """Return what all runs have cost, and `more` releases of such sums beside.

        Returns
        -------
        The proved epsilon at the budget's delta; 0 before the first release.
        """
        rows = self._file.execute("select numbers, spent from runs where spent > 0").fetchall()
        runs = [(json.loads(text), spent) for text, spent in rows]
        if numbers is not None and more > 0:
            fields = ("noise_multiplier", "share", "sites", "dim", "sampling_rate")
            runs.append(({name: getattr(numbers, name) for name in fields}, more))
        if not runs:
            return 0.0
        columns = {name: [kept[name] for kept, _ in runs] for name in runs[0][0]}
        return sum_of_shares_epsilon(
            delta=self.budget[1],
            **columns,
            neighboring_relation=self._relation,
            count=[spent for _, spent in runs],
        )

    def allows(self, numbers: SecureSum, more: int) -> bool:
        """Return whether the budget has room for so many more releases of such sums."""
        return self.epsilon(numbers, more) <= min(self.budget[0] * (1 + 1e-9), inf)
