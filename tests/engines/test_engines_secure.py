"""Sites and a server that trust each other in nothing: what a server can do, and what it learns."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Barrier, BrokenBarrierError, Thread
from typing import Any

import numpy as np
import pytest
from scipy import stats
from secure_parties import DELTA, RUN, Parties, is_open

from dpmesh.engines.secure import (
    Folder,
    Hello,
    RefusedError,
    Server,
    Site,
    in_process,
    serve,
    train,
)
from dpmesh.engines.secure.run_secrets import RunSecrets
from dpmesh.engines.secure.wire import SUM, answer_in
from dpmesh.engines.signing import SigningKey, pack, unpack
from dpmesh.kernels import unpack_sum
from dpmesh.keys import Key
from dpmesh.privacy.secure import encode, open_sum


class Lossy:
    """Sites of which some are lost for good before they answer an attempt."""

    def __init__(self, sites: list[Site], lost: set[int], attempt: int) -> None:
        self._carry, self._lost, self._attempt = in_process(sites), lost, attempt

    def __call__(self, questions: Mapping[int, bytes]) -> Mapping[int, bytes]:
        kind, _, *fields = unpack(next(iter(questions.values())))
        if kind == SUM and int.from_bytes(fields[1], "big") >= self._attempt:
            questions = {own: word for own, word in questions.items() if own not in self._lost}
        return self._carry(questions)


# What an honest run gives


def test_a_run_of_an_honest_server_learns_and_every_ledger_is_its_plan(parties: Parties) -> None:
    server = Server(parties.contract, in_process(parties.sites))
    state = parties.algorithm.init(parties.problem, Key.seeded(1))
    for t in range(3):
        total = server.sum(t, state.w)
        assert is_open(parties, total, state.w)
        state = parties.algorithm.absorb(state, total, t, parties.problem)
    assert [site.state.spent for site in parties.sites] == [3] * 4
    three = replace(parties.contract.numbers, dropouts=0, colluding=2)
    for folder in (site.folder for site in parties.sites):
        assert folder.spent(parties.contract).epsilon == pytest.approx(three.epsilon(DELTA))
        assert folder.cost() == pytest.approx(parties.contract.numbers.epsilon(DELTA))
    server.close()
    for site in parties.sites:
        with pytest.raises(RefusedError, match="the run is over"):
            site.join(server.run)


def test_what_is_opened_is_the_sum_of_the_sites_own_integers_and_noise(parties: Parties) -> None:
    small = replace(parties.contract.numbers, noise_multiplier=0.01)
    quiet = replace(parties.contract, numbers=small)
    for site in parties.sites:
        site.folder._require = id  # whatever it costs
    parties.contract = quiet
    parties.sites = [Site(quiet, site.folder, site._sums) for site in parties.sites]
    total = open_sum(small, parties.answers(parties.header()))
    key = Key.seeded(0)
    steps = encode(small, parties.algorithm.site_sums(parties.w, 0, parties.problem, key))
    np.testing.assert_allclose(total[0] / small.grid, steps.sum(axis=0), atol=8 * small.share * 2)


def test_each_answer_is_uniform(tmp_path: Path) -> None:
    parties = Parties(tmp_path, dim=5000)
    public = parties.contract.numbers
    answers = parties.answers(parties.header())
    for seen in ([0], [1], [2], [3], [0, 1, 2]):
        total = unpack_sum([answers[i] for i in seen], 5000, public.modulus_bits)
        counts = np.bincount(total % 256, minlength=256)
        assert stats.chisquare(counts).pvalue > 1e-6


def test_training_at_a_server_without_records_has_the_same_bits(parties: Parties) -> None:
    """Asked twice, and carried as bytes, sites answer the same."""
    carry = in_process(parties.sites)

    def twice(questions: Mapping[int, bytes]) -> Mapping[int, bytes]:
        said = carry(questions)
        assert carry(questions) == said
        return said

    server = Server(parties.contract, twice)
    sums, honest = [], server.sum
    server.sum = lambda t, w, save: sums.append(honest(t, w, save)) or sums[-1]
    found = train(server, parties.algorithm, parties.w)
    state = parties.algorithm.init(parties.problem, Key.seeded(1))
    for t, total in enumerate(sums):
        state = parties.algorithm.absorb(state, total, t, parties.problem)
    np.testing.assert_array_equal(found, parties.algorithm.parameters(state))
    assert len(sums) == parties.algorithm.rounds
    other = replace(parties.algorithm, noise_multiplier=8.0)
    with pytest.raises(ValueError, match="algorithm: wanted one of the contract's sums"):
        train(server, other, parties.w)


@pytest.mark.parametrize(
    "question",
    [
        b"",
        b"no fields at all",
        pack(b"sum"),
        pack(b"sum", RUN),
        pack(b"sum", RUN, *7 * [b"1"]),
        pack(b"sum", RUN, *7 * [b"12345678"]),
        pack(b"tell me all", RUN),
        pack(b"join", b"short"),
    ],
)
def test_a_question_that_cannot_be_read_is_refused(parties: Parties, question: bytes) -> None:
    with pytest.raises(RefusedError, match=r"question|run's id"):
        answer_in(serve(parties.sites[0], question))
    assert parties.sites[0].state is None


def test_why_a_site_fails_stays_in_its_log(
    parties: Parties, caplog: pytest.LogCaptureFixture
) -> None:
    parties.sites[0].join = lambda run: {}["patient 17"]
    answer = serve(parties.sites[0], pack(b"join", RUN))
    with pytest.raises(RefusedError, match="the site has stopped"):
        answer_in(answer)
    assert "patient 17" in caplog.text


# Sites that are lost


def test_a_lost_site_is_left_out_of_a_new_attempt_which_is_charged(parties: Parties) -> None:
    server = Server(parties.contract, Lossy(parties.sites, {2}, 1))
    for t in range(3):
        assert is_open(parties, server.sum(t, parties.w))
    assert server.cohort == (0, 1, 3)
    spent = [site.state.spent for site in parties.sites]
    assert spent == [4, 4, 1, 4]
    assert parties.contract.numbers.attempts == 4
    with pytest.raises(RefusedError, match="the plan or the budget is spent"):
        server.sum(3, parties.w)


def test_too_few_sites_are_no_cohort(parties: Parties) -> None:
    server = Server(parties.contract, Lossy(parties.sites, {0, 1}, 0), run=RUN)
    with pytest.raises(ValueError, match="at least 3 sites that answer"):
        server.sum(0, parties.w)
    with pytest.raises(RefusedError, match="from 3 to 4 sites"):
        parties.sites[2].answer(parties.header(9, (2, 3)), parties.w)


def test_a_late_message_of_a_lost_site_opens_nothing_of_its_own(parties: Parties) -> None:
    """Leak of row 5: masks handed over to repair a dropout would open the vector. None are.

    Leak of row 6: the first sum completed late, minus the second, has the noise of both attempts.
    """
    public = parties.contract.numbers
    first = parties.answers(parties.header(0))
    second = parties.answers(parties.header(1, (0, 1, 3)))
    difference = open_sum(public, first) - open_sum(public, second)
    own = parties.algorithm.site_sums(parties.w, 0, parties.problem, Key.seeded(0))[2]
    left_over = (difference - own) / public.grid
    # noise of 4 shares and of 3 others, 2.6 shares; 1 if the survivors' noise were the same
    assert np.sqrt((left_over**2).mean()) > 1.7 * public.share
    assert not is_open(parties, _open(public, [second[0], second[1], first[2], second[3]]))
    assert not is_open(parties, _open(public, [first[0], first[1], first[3]]))


def _open(public: Any, answers: list[bytes]) -> Any:
    return open_sum(public, dict(enumerate(answers)))


def test_planted_noise_that_is_reused_in_a_new_attempt_is_caught(
    parties: Parties, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = RunSecrets.derived
    monkeypatch.setattr(
        RunSecrets,
        "derived",
        lambda self, use, salt, *context: honest(self, use, salt, *context[1:]),  # without H
    )
    public = parties.contract.numbers
    first = parties.answers(parties.header(0))
    second = parties.answers(parties.header(1, (0, 1, 3)))
    difference = open_sum(public, first) - open_sum(public, second)
    own = parties.algorithm.site_sums(parties.w, 0, parties.problem, Key.seeded(0))[2]
    left_over = (difference - own) / public.grid
    assert np.sqrt((left_over**2).mean()) < 1.7 * public.share  # the noise of one site


# A server that lies


def test_the_same_header_gets_the_same_bytes_also_after_a_restart(parties: Parties) -> None:
    header = parties.header()
    sent = parties.sites[1].answer(header, parties.w)
    assert parties.sites[1].answer(header, parties.w) == sent
    parties.close(1)
    parties.sites[1] = parties.site(1)
    assert parties.sites[1].answer(header, parties.w) == sent
    assert parties.sites[1].state.spent == 1


@pytest.mark.parametrize("what", ["model", "round", "cohort"])
def test_another_header_with_an_old_attempt_is_refused(parties: Parties, what: str) -> None:
    header = parties.header()
    parties.sites[0].answer(header, parties.w)
    w = parties.w + (what == "model")
    if what == "round":
        header = replace(header, step=7)
    if what == "cohort":
        header = replace(
            header, cohort=(0, 1, 2), hellos=header.hellos[:3], readies=header.readies[:3]
        )
    with pytest.raises(RefusedError, match="attempt 0 is not after 0"):
        parties.sites[0].answer(header, w)


@pytest.mark.parametrize("what", ["model", "last number", "round", "cohort"])
def test_sites_that_are_shown_different_things_open_nothing(parties: Parties, what: str) -> None:
    public = parties.contract.numbers
    header = parties.header()
    answers = {i: parties.sites[i].answer(header, parties.w) for i in range(3)}
    other, w = header, parties.w
    if what == "model":
        w = parties.w + 1e-9
    if what == "last number":
        w = parties.w.copy()
        w[0, -1] = 1e-300
    if what == "round":
        other = replace(header, step=1)
    if what == "cohort":
        some = 1, 2, 3
        other = replace(header, cohort=some, hellos=header.hellos[1:], readies=header.readies[1:])
    answers[3] = parties.sites[3].answer(other, w)
    assert not is_open(parties, open_sum(public, answers))


def test_two_headers_at_once_are_not_both_answered(parties: Parties) -> None:
    """Both sums opened, and charged once, their difference is the vector of site 3."""
    whole, less = parties.header(0), parties.header(0, (0, 1, 2))
    both, site, answers = Barrier(2), parties.sites[0], []
    honest = site._sums

    def slow(w: Any, t: int, coins: Key) -> Any:
        with suppress(BrokenBarrierError):
            both.wait(0.2)  # for the other thread, which must not come this far
        return honest(w, t, coins)

    def ask(header: Any) -> None:
        with suppress(RefusedError):
            answers.append(site.answer(header, parties.w))

    site._sums = slow
    threads = [Thread(target=ask, args=(header,)) for header in (whole, less)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 1


def test_sites_with_another_contract_are_refused_by_name(parties: Parties) -> None:
    """Other numbers, such as another grid or a smaller share, are another contract."""
    weaker = replace(parties.contract.numbers, noise_multiplier=8.5)
    parties.sites[3].contract = replace(parties.contract, numbers=weaker)
    header = parties.header()
    with pytest.raises(RefusedError, match="the key of site 3 is not signed"):
        parties.sites[0].answer(header, parties.w)
    with pytest.raises(RefusedError, match="the key of site 0 is not signed"):
        parties.sites[3].answer(header, parties.w)


def test_a_server_cannot_put_its_own_key_in_the_place_of_a_sites(parties: Parties) -> None:
    header = parties.header()
    own = RunSecrets.generate()
    forged = Hello.signed(parties.contract, 2, RUN, own.public, SigningKey.generate())
    hellos = header.hellos
    for bad, said in [
        (forged, "the key of site 2 is not signed"),
        (replace(hellos[2], run=b"another run's id"), "the key of site 2 is not signed"),
        (replace(hellos[3], site=2), "the key of site 2 is not signed"),
        (replace(hellos[2], signature=bytes(64)), "the key of site 2 is not signed"),
        (hellos[3], "the keys are not those of the cohort"),
        (Hello.signed(parties.contract, 2, RUN, bytes(32), parties.keys[2]), "no X25519 key"),
        (Hello.signed(parties.contract, 2, RUN, hellos[1].key, parties.keys[2]), "the same key"),
        (
            Hello.signed(parties.contract, 2, RUN, b"\1" + bytes(31), parties.keys[2]),
            "no secret can be shared with site 2",
        ),
    ]:
        with pytest.raises(RefusedError, match=said):
            parties.sites[0].answer(
                replace(header, hellos=(*hellos[:2], bad, hellos[3])), parties.w
            )
    assert parties.sites[0].state.spent == 0


def test_a_second_key_of_a_site_in_one_run_is_refused(parties: Parties) -> None:
    header = parties.header()
    parties.sites[0].answer(header, parties.w)
    second = Hello.signed(parties.contract, 2, RUN, RunSecrets.generate().public, parties.keys[2])
    again = parties.header(1)
    with pytest.raises(RefusedError, match="site 2 has another key in this run"):
        parties.sites[0].answer(
            replace(again, hellos=(*again.hellos[:2], second, again.hellos[3])), parties.w
        )


def test_models_and_cohorts_that_are_none_are_refused_without_a_look_at_data(
    parties: Parties,
) -> None:
    looked = []
    parties.close(0)
    parties.sites[0] = parties.site(0, sums=lambda w, t, coins: looked.append(w))
    header = parties.header()
    for bad, w, said in [
        (header, parties.w + np.nan, "finite"),
        (header, parties.w[:, :3], "40 finite numbers"),
        (replace(header, cohort=(0, 0, 1, 2)), parties.w, "no list of sites"),
        (replace(header, cohort=(1, 2, 3, 9)), parties.w, "no list of sites"),
        (replace(header, attempt=-1), parties.w, "the attempt is no integer"),
        (replace(header, run=b"run number two.."), parties.w, "this one had another"),
    ]:
        with pytest.raises(RefusedError, match=said):
            parties.sites[0].answer(bad, w)
    with pytest.raises(RefusedError, match="the site is not in the cohort"):
        parties.sites[0].answer(parties.header(0, (1, 2, 3)), parties.w)
    assert not looked


# Sites that fail


def test_a_site_whose_code_fails_sends_noise_alone_and_stops(
    parties: Parties, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(w: Any, t: int, coins: Key) -> Any:
        raise RuntimeError("patient 17 has no age")

    parties.close(2)
    parties.sites[2] = parties.site(2, sums=fails)
    answers = parties.answers(parties.header())
    assert is_open(parties, open_sum(parties.contract.numbers, answers))
    assert "patient 17" in caplog.text  # the site's own log
    with pytest.raises(RefusedError, match="the site has stopped"):
        parties.answers(parties.header(1))


# Keys and contracts


def test_keys_are_kept_in_files_of_their_owner_alone(tmp_path: Path) -> None:
    key = SigningKey.generate()
    path = tmp_path / "key.pem"
    key.save(path)
    assert SigningKey.load(path).public == key.public
    assert path.stat().st_mode & 0o077 == 0
    with pytest.raises(FileExistsError):
        key.save(path)


def test_secrets_are_erased_and_not_printed(parties: Parties) -> None:
    parties.answers(parties.header())
    secrets = parties.sites[0].state.secrets
    assert secrets.own.hex() not in repr(secrets)
    parties.sites[0].leave(RUN)
    for file in (parties.folder / "site0").iterdir():  # the journal, too
        assert secrets.own.hex().encode() not in file.read_bytes()


def test_contracts_that_do_not_fit_are_refused(parties: Parties) -> None:
    keys = parties.contract.site_keys
    with pytest.raises(ValueError, match="a key for each of 4 sites"):
        replace(parties.contract, site_keys=keys[:3])
    with pytest.raises(ValueError, match="the same for sites 0 and 3"):
        replace(parties.contract, site_keys=(*keys[:3], keys[0]))
    stranger = Folder.create(parties.folder / "x", epsilon=1.0, delta=DELTA)
    with pytest.raises(ValueError, match="the public key of a site of the contract"):
        Site(parties.contract, stranger, parties.sites[0]._sums)
    stranger.close()


@pytest.mark.parametrize("name", ["noise_multiplier", "clipping_norm", "records", "dropouts"])
def test_every_number_of_a_contract_is_in_its_hash(parties: Parties, name: str) -> None:
    numbers = parties.contract.numbers
    changed = replace(numbers, **{name: getattr(numbers, name) + (-1 if name == "dropouts" else 1)})
    assert replace(parties.contract, numbers=changed).hash != parties.contract.hash


def test_a_shares_own_number_of_honest_sites_is_held_to_the_cohort(parties: Parties) -> None:
    """A share sized for more honest sites than a cohort has is refused before anything is sent."""
    header = parties.header(0, (0, 1))
    with pytest.raises(RefusedError, match="whose shares of noise are enough"):
        parties.sites[0].answer(header, parties.w)
