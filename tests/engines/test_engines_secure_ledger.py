"""A site whose disk is restored or whose ledger is lost, and what its ledger charges."""

from __future__ import annotations

from pathlib import Path
from shutil import copy

import numpy as np
import pytest
from secure_parties import DELTA, RUN, Parties, is_open

from dpmesh.engines.secure import (
    RefusedError,
    Site,
    SiteState,
)
from dpmesh.engines.secure.run_secrets import RunSecrets
from dpmesh.kernels import unpack_sum
from dpmesh.privacy.secure import open_sum


def test_a_restored_site_answers_the_same_header_with_the_same_bytes(parties: Parties) -> None:
    """Leak of row 7: fresh noise under the same masks would open the vector."""
    header = parties.header()
    path = parties.folder / "site1.db"
    parties.sites[1].state.close()
    old = parties.folder / "backup.db"
    copy(path, old)
    parties.sites[1] = parties.site(1)
    sent = parties.sites[1].answer(header, parties.w)
    restored = parties.site(1, old)
    assert restored.answer(header, parties.w) == sent
    restored.state.close()


def test_a_restored_site_that_is_asked_for_something_else_opens_nothing(parties: Parties) -> None:
    header = parties.header()
    parties.sites[1].state.close()
    copy(parties.folder / "site1.db", parties.folder / "backup.db")
    parties.sites[1] = parties.site(1)
    answers = parties.answers(header)
    restored = parties.site(1, parties.folder / "backup.db")
    answers[1] = restored.answer(header, parties.w + 1.0)
    assert not is_open(parties, open_sum(parties.contract.numbers, answers))
    restored.state.close()


def test_planted_fresh_noise_for_a_repeated_header_is_open(
    parties: Parties, monkeypatch: pytest.MonkeyPatch
) -> None:
    public, header = parties.contract.numbers, parties.header()
    parties.sites[1].state.close()
    copy(parties.folder / "site1.db", parties.folder / "backup.db")
    parties.sites[1] = parties.site(1)
    fresh = iter(range(10**9))
    monkeypatch.setattr(RunSecrets, "derived", lambda *_: next(fresh))
    restored = parties.site(1, parties.folder / "backup.db")
    bits = public.modulus_bits
    one, other = (
        unpack_sum([site.answer(header, parties.w)], 40, bits)
        for site in (parties.sites[1], restored)
    )
    unused = 64 - bits
    difference = (one - other) << unused >> unused
    assert np.abs(difference).max() < 10 * public.share  # no mask is left: flagged
    restored.state.close()


def test_a_restored_site_takes_over_what_the_others_know(parties: Parties) -> None:
    parties.header()
    parties.sites[1].state.close()
    copy(parties.folder / "site1.db", parties.folder / "backup.db")
    parties.sites[1] = parties.site(1)
    for attempt in range(2):
        parties.answers(parties.header(attempt))
    parties.sites[1].state.close()
    parties.sites[1] = parties.site(1, parties.folder / "backup.db")
    old = parties.header(1)
    with pytest.raises(RefusedError, match="attempt 1 is not after 1"):
        parties.sites[1].answer(old, parties.w)
    parties.answers(parties.header(2))
    assert parties.sites[1].state.read(RUN, parties.contract).spent == 3


def test_two_processes_cannot_hold_one_ledger(parties: Parties) -> None:
    with pytest.raises(ValueError, match="no other process uses"):
        parties.site(0)


def test_a_lost_ledger_counts_as_spent_in_whole(parties: Parties, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no ledger"):
        SiteState.open(tmp_path / "none.db")
    state = SiteState.create(
        tmp_path / "new.db",
        epsilon=8.0,
        delta=DELTA,
        neighboring_relation="replace_one",
        lost=[parties.contract],
    )
    assert state.epsilon() == pytest.approx(parties.contract.numbers.epsilon(DELTA))
    state.close()


def test_the_ledger_goes_on_over_runs(parties: Parties) -> None:
    whole = parties.contract.numbers.epsilon(DELTA)
    for site in parties.sites:
        site.state.budget = (1.2 * whole, DELTA)
    parties.answers(parties.header())
    assert 0 < parties.sites[0].state.epsilon() < whole
    for attempt in (1, 2):
        parties.answers(parties.header(attempt))
    with pytest.raises(RefusedError, match="no room for the whole plan"):
        parties.sites[0].join(b"run number two..")


def test_a_contract_of_another_relation_is_refused(tmp_path: Path, parties: Parties) -> None:
    state = SiteState.create(
        tmp_path / "other.db", epsilon=1.0, delta=DELTA, neighboring_relation="add_remove"
    )
    with pytest.raises(ValueError, match="for add_remove"):
        Site(parties.contract, 0, parties.keys[0], state, lambda w, coins: w).join(RUN)
    state.close()
