"""A site of a secure sum: it answers a server that it does not trust.

Whatever the server says, an answer is a vector under masks that cancel only in the sum over a
cohort with enough honest sites, all of which agree on everything in the header's digest H. The
records that take part, the noise and the masks are functions of H and of the site's secrets, so
that a repeated header gets the same bytes, and any other one is charged and drawn anew.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from threading import Lock
from typing import Any

import numpy as np

import dpmesh.kernels as kernels
from dpmesh._validate import fail, integer
from dpmesh.algorithms.cross_silo import CrossSiloSGD
from dpmesh.engines.secure.contract import Contract
from dpmesh.engines.secure.messages import Header, Hello, Ready, RefusedError
from dpmesh.engines.secure.run_secrets import RunSecrets
from dpmesh.engines.secure.state import RunState, SiteState
from dpmesh.engines.signing import SigningKey, digest
from dpmesh.keys import Key, Purpose
from dpmesh.privacy.secure import answer, encode, with_noise
from dpmesh.privacy.secure.sums import Integers
from dpmesh.privacy.types import Floats, Released

_log = logging.getLogger("dpmesh")

Sums = Callable[[Floats, Key], Floats]
"""A site's sum of clipped vectors, shape (1, dim), at a model; the key draws its sample."""


class Site:
    """One party of a secure sum, with its own records, keys and ledger.

    Parameters
    ----------
    contract
        What the sites agreed on, from them and not from the server.
    own
        This site's number.
    signing
        Its long-term key, whose public half is in the contract.
    state
        Its file.
    sums
        Its sum of clipped vectors; see `record_sums`.

    Raises
    ------
    ValueError
        If the signing key is not that of the contract.
    """

    def __init__(
        self, contract: Contract, own: int, signing: SigningKey, state: SiteState, sums: Sums
    ) -> None:
        integer("own", own, below=contract.numbers.sites)
        if signing.public != contract.site_keys[own]:
            fail("signing", f"the key of site {own} in the contract", "another one")
        self.contract, self.own, self.state = contract, own, state
        self._signing, self._sums, self._lock = signing, sums, Lock()

    def join(self, run: bytes) -> Hello:
        """Start a run, and return its public key for it. Asked again, the same one.

        Raises
        ------
        RefusedError
            If the run is over, or the budget has no room for its whole plan.
        """
        if not isinstance(run, bytes) or not 16 <= len(run) <= 64:
            raise RefusedError("the run's id is not 16 to 64 bytes")
        known = self._known(run)
        if known is None:
            numbers = self.contract.numbers
            if not self.state.allows(numbers, numbers.attempts):
                raise RefusedError("the budget has no room for the whole plan")
            known = RunState(RunSecrets.generate())
            self.state.begin(run, self.contract, known)
        secrets = self._secrets(known)
        return Hello.signed(self.contract, self.own, run, secrets.public, self._signing)

    def ready(self, run: bytes) -> Ready:
        """Say that it takes part in the next attempt, and what it knows of the run."""
        state = self._run(run)
        known = state.last_attempt, state.spent
        return Ready.signed(self.contract, self.own, run, *known, self._signing)

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
            the plan or the budget is spent. The reason does not depend on the records.
        """
        with self._lock:  # two headers with one attempt must not both pass
            return self._answer(header, w)

    def _answer(self, header: Header, w: Floats) -> bytes:
        state = self._run(header.run)
        secrets = self._secrets(state)
        state = self._checked(header, w, state)
        attempt = header.digest(self.contract, w)
        if attempt == state.digest:
            return state.answer
        state = self._admitted(header, state)
        pairs = self._pairs(header, secrets, attempt)
        steps, failed = self._steps(w, secrets, attempt)
        numbers, salt = self.contract.numbers, self.contract.fingerprint
        noise = secrets.derived(b"noise", salt, attempt, digest(steps.tobytes()))
        noisy = with_noise(numbers, steps, Key.seeded(noise).stream(Purpose.NOISE))
        sent = answer(numbers, self.own, noisy[0], pairs)
        charged = replace(
            state,
            last_attempt=header.attempt,
            spent=state.spent + 1,
            digest=attempt,
            answer=sent,
            stopped=failed,
        )
        self.state.write(header.run, charged)
        return sent

    def leave(self, run: bytes) -> None:
        """End a run and erase its secrets."""
        self.state.end(run, self.contract)

    def _run(self, run: bytes) -> RunState:
        state = self._known(run)
        if state is None:
            raise RefusedError("the site has not joined this run")
        return state

    def _known(self, run: bytes) -> RunState | None:
        try:
            return self.state.read(run, self.contract)
        except ValueError as error:
            raise RefusedError(str(error)) from None

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
        """Refuse an old attempt, and one beyond the plan or the budget, as far as anybody knows."""
        last = max(state.last_attempt, *(ready.last_attempt for ready in header.readies))
        spent = max(state.spent, *(ready.spent for ready in header.readies))
        if state.stopped:
            raise RefusedError("the site has stopped")
        if header.attempt <= last:
            raise RefusedError(f"attempt {header.attempt} is not after {last}, the last one")
        numbers = self.contract.numbers
        behind = spent - state.spent
        if spent >= numbers.attempts or not self.state.allows(numbers, behind + 1):
            raise RefusedError("the plan or the budget is spent")
        return replace(state, last_attempt=last, spent=spent)

    def _pairs(self, header: Header, secrets: RunSecrets, attempt: bytes) -> dict[int, bytes]:
        pairs = {}
        for hello in header.hellos:
            if hello.site == self.own:
                continue
            sites, salt = (self.own, hello.site), self.contract.fingerprint
            try:
                pairs[hello.site] = secrets.pair(hello.key, sites, salt, attempt)
            except ValueError:
                raise RefusedError(f"no secret can be shared with site {hello.site}") from None
        return pairs

    def _steps(self, w: Floats, secrets: RunSecrets, attempt: bytes) -> tuple[Integers, bool]:
        """Return the site's integers, and whether its code failed: then they are 0."""
        numbers = self.contract.numbers
        coins = Key.seeded(secrets.derived(b"coins", self.contract.fingerprint, attempt))
        try:
            return encode(numbers, self._sums(w, coins)), False
        except Exception:
            _log.exception("the sums of site %d failed: it sends noise alone and stops", self.own)
            return np.zeros((1, numbers.dim), np.int64), True


def record_sums(contract: Contract, algorithm: CrossSiloSGD, problem: Any) -> Sums:
    """Return the sums of a site that holds all records of a problem of one node.

    Raises
    ------
    ValueError
        If the algorithm is not that of the contract, the problem has several nodes, or more records
        than the algorithm allows for a site.
    """
    if algorithm.secure_sum != contract.numbers:
        fail("algorithm", f"one of the contract's sums, {contract.numbers}", algorithm.secure_sum)
    if problem.nodes != 1:
        fail("problem", "the records of one site, such as problem.for_nodes([0])", problem.nodes)
    algorithm.check_site(problem)
    return lambda w, coins: algorithm.site_sums(Released(w), 0, problem, coins)
