"""A site of a secure sum: it answers a server that it does not trust.

Whatever the server sends, an answer is a vector under masks that cancel only in the sum over a
cohort with enough honest sites, all of which agree on everything in the header's digest H. The
records that take part, the noise and the masks are functions of H and of the site's secrets, so
that a repeated header gets the same bytes, and any other one is charged and drawn anew.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

import dpmesh.kernels as kernels
from dpmesh._validate import fail
from dpmesh.algorithms.cross_silo import CrossSiloSGD
from dpmesh.engines.mesh.folder import Folder
from dpmesh.engines.secure.contract import Contract
from dpmesh.engines.secure.messages import Header, Hello, Ready, RefusedError
from dpmesh.engines.secure.run_secrets import RunSecrets
from dpmesh.engines.secure.state import RunState, load, store
from dpmesh.engines.signing import digest
from dpmesh.keys import Key, Purpose, Stream
from dpmesh.privacy.secure import answer, encode, with_noise
from dpmesh.privacy.secure.sums import Integers
from dpmesh.privacy.types import Floats, Released

_log = logging.getLogger("dpmesh")

Sums = Callable[[Floats, int, Key], Floats]
"""A site's sum of clipped vectors, shape (1, dim), at a model in a round; the key draws samples."""


class Site:
    """One party of a secure sum, with its own records and folder.

    Parameters
    ----------
    contract
        What the sites agreed on, from them and not from the server.
    folder
        The party's folder. Its budget gets charged for the whole contract now.
    sums
        Its sum of clipped vectors; see `record_sums`.
    records
        A digest of the site's records, which must not change during a run.
    rehearsal
        A public key from which all samples and noise come, as `simulate` draws them; such a run has
        no privacy.

    Raises
    ------
    OverBudget
        A `ValueError`, if the folder's budget has no room for the contract.
    ValueError
        If the folder's signing key is not in the contract.
    """

    def __init__(
        self,
        contract: Contract,
        folder: Folder,
        sums: Sums,
        *,
        records: str = "",
        rehearsal: Key | None = None,
    ) -> None:
        self.own = contract.site_of(folder.signing.public)
        folder.join(contract, records, seeded=rehearsal is not None)
        self.contract, self.folder = contract, folder
        self._sums, self._rehearsal = sums, rehearsal

    @property
    def state(self) -> RunState | None:
        """What it stores of the contract's run; None before it."""
        return load(self.folder, self.contract)

    def join(self, run: bytes) -> Hello:
        """Start the contract's run, and return its public key for it. Asked again, the same one.

        Raises
        ------
        RefusedError
            If the run is over, or the contract had another run.
        """
        if not isinstance(run, bytes) or not 16 <= len(run) <= 64:
            raise RefusedError("the run's id is not 16 to 64 bytes")
        with self.folder.transaction():
            state = self.state
            if state is None:
                state = RunState(run, RunSecrets.generate())
                store(self.folder, self.contract, state)
        secrets = self._secrets(self._run(run))
        return Hello.signed(self.contract, self.own, run, secrets.public, self.folder.signing)

    def ready(self, run: bytes) -> Ready:
        """State that it takes part in the next attempt, and what it knows of the run."""
        state = self._run(run)
        known = state.last_attempt, state.spent
        return Ready.signed(self.contract, self.own, run, *known, self.folder.signing)

    def answer(self, header: Header, w: Floats) -> bytes:
        """Return the site's vector at the model `w` under masks, charged and on disk before.

        Parameters
        ----------
        header
            Who takes part. The same header and model get the same bytes again.
        w
            The model, shape (1, dim).

        Raises
        ------
        RefusedError
            If the header does not fit the contract, this site's run or what it answered before, or
            the plan is spent. The reason does not depend on the records.
        """
        with self.folder.transaction():  # of two headers with one attempt only one is answered
            before = self._checked(header, w, self._run(header.run))
            attempt = header.digest(self.contract, w)
            if attempt == before.digest:
                return before.answer
            state = self._answered(header, w, self._admitted(header, before), attempt)
            store(self.folder, self.contract, state)
        self.folder.mark(self.contract)
        return state.answer

    def _answered(self, header: Header, w: Floats, state: RunState, attempt: bytes) -> RunState:
        """Return the state with the answer to a header."""
        secrets, numbers = self._secrets(state), self.contract.numbers
        pairs = self._pairs(header, secrets, attempt)
        steps, failed = self._steps(header, w, secrets, attempt)
        noisy = with_noise(numbers, steps, self._noise(header, steps, secrets, attempt))
        return replace(
            state,
            last_attempt=header.attempt,
            spent=state.spent + 1,
            digest=attempt,
            answer=answer(numbers, self.own, noisy[0], pairs),
            stopped=failed,
        )

    def leave(self, run: bytes, released: bytes = b"") -> None:
        """End a run, erase its secrets, and store what the server says is the model."""
        with self.folder.transaction():
            ended = replace(self._run(run), secrets=None, answer=b"")
            store(self.folder, self.contract, ended, released)

    def _run(self, run: bytes) -> RunState:
        state = self.state
        if state is None:
            raise RefusedError("the site has not joined this run")
        if state.run != run:
            raise RefusedError("a contract serves one run, and this one had another")
        return state

    def _secrets(self, state: RunState) -> RunSecrets:
        if state.secrets is None:
            raise RefusedError("the run is over")
        return state.secrets

    def _checked(self, header: Header, w: Floats, state: RunState) -> RunState:
        """Refuse what does not fit the contract; return the state with the keys that were seen."""
        numbers = self.contract.numbers
        header.check(self.contract)
        if self.own not in header.cohort:
            raise RefusedError("the site is not in the cohort")
        if w.shape != (1, numbers.dim) or not kernels.all_finite(w):
            raise RefusedError(f"the model is not {numbers.dim} finite numbers")
        own = self._secrets(state).public
        seen = {**(state.keys or {}), self.own: own}
        for hello in header.hellos:
            if seen.setdefault(hello.site, hello.key) != hello.key:
                raise RefusedError(f"site {hello.site} has another key in this run")
        return replace(state, keys=seen)

    def _admitted(self, header: Header, state: RunState) -> RunState:
        """Refuse an old attempt, and one beyond the plan, as far as anybody knows."""
        last = max(state.last_attempt, *(ready.last_attempt for ready in header.readies))
        spent = max(state.spent, *(ready.spent for ready in header.readies))
        if state.stopped:
            raise RefusedError("the site has stopped")
        if header.attempt <= last:
            raise RefusedError(f"attempt {header.attempt} is not after {last}, the last one")
        if spent >= self.contract.numbers.attempts or self.folder.is_over_budget:
            raise RefusedError("the plan or the budget is spent")
        return replace(state, last_attempt=last, spent=spent)

    def _pairs(self, header: Header, secrets: RunSecrets, attempt: bytes) -> dict[int, bytes]:
        pairs = {}
        for hello in header.hellos:
            if hello.site == self.own:
                continue
            sites, salt = (self.own, hello.site), self.contract.hash
            try:
                pairs[hello.site] = secrets.pair(hello.key, sites, salt, attempt)
            except ValueError:
                raise RefusedError(f"no secret can be shared with site {hello.site}") from None
        return pairs

    def _noise(
        self, header: Header, steps: Integers, secrets: RunSecrets, attempt: bytes
    ) -> Stream:
        if self._rehearsal is not None:
            return self._own(self._rehearsal).stream(Purpose.NOISE, header.step)
        seed = secrets.derived(b"noise", self.contract.hash, attempt, digest(steps.tobytes()))
        return Key.seeded(seed).stream(Purpose.NOISE)

    def _own(self, key: Key) -> Key:
        return key.for_nodes(np.array([self.own], np.uint32))

    def _steps(
        self, header: Header, w: Floats, secrets: RunSecrets, attempt: bytes
    ) -> tuple[Integers, bool]:
        """Return the site's integers, and whether its code failed: then they are 0."""
        numbers = self.contract.numbers
        coins = Key.seeded(secrets.derived(b"coins", self.contract.hash, attempt))
        if self._rehearsal is not None:
            coins = self._own(self._rehearsal)
        try:
            return encode(numbers, self._sums(w, header.step, coins)), False
        except Exception:
            _log.exception("the sums of site %d failed: it sends noise alone and stops", self.own)
            return np.zeros((1, numbers.dim), np.int64), True


def record_sums(contract: Contract, algorithm: CrossSiloSGD, problem: Any) -> Sums:
    """Return the sums of a site that holds all records of a problem of one node.

    Raises
    ------
    ValueError
        If the contract protects no records, the algorithm is not its own, or the problem has
        several nodes, or more records than the algorithm allows for a site.
    """
    contract.check_unit("record")
    if algorithm.secure_sum != contract.numbers:
        fail("algorithm", f"one of the contract's sums, {contract.numbers}", algorithm.secure_sum)
    if problem.nodes != 1:
        fail("problem", "the records of one site, such as problem.for_nodes([0])", problem.nodes)
    algorithm.check_site(problem)
    return lambda w, t, coins: algorithm.site_sums(Released(w), t, problem, coins)
