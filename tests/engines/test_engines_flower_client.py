"""What leaves a client of Flower, to a server that is curious: asked through its own ClientApp."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import dpmesh as dm

flwr = pytest.importorskip("flwr.app", reason="needs the extra 'flower'")

from flwr.clientapp import ClientApp  # noqa: E402

from dpmesh.deploy.flower import (  # noqa: E402
    OnlyTrains,
    TrainingFailed,
    flat,
    private_update,
)
from dpmesh.deploy.flower.parties import PARTY  # noqa: E402
from dpmesh.privacy.budget import OverBudget  # noqa: E402

pytestmark = pytest.mark.usefixtures("inside_an_app")

L, Z, DIM = 0.3, 0.7, 4
TWICE = dm.privacy.Budget(
    dm.privacy.accounting.gdp_epsilon(delta=1e-5, mu=np.sqrt(2) / Z), delta=1e-5
)


def model(numbers, dtype=np.float64) -> flwr.ArrayRecord:
    return flwr.ArrayRecord({"w": flwr.Array(np.asarray(numbers, dtype))})


def context(**node_config) -> flwr.Context:
    return flwr.Context(1, 7, node_config, flwr.RecordDict(), {})


def trains(train, mod) -> ClientApp:
    """An app with a function for each kind of message."""
    app = ClientApp(mods=[mod])
    app.train()(train)
    app.train("other")(train)
    app.evaluate()(train)
    app.query()(train)
    return app


def ask(app, kind="train", *, of=None, start=None) -> flwr.Message:
    start = model(np.zeros(DIM)) if start is None else start
    message = flwr.Message(flwr.RecordDict({"arrays": start}), 7, kind, ttl=1000.0)
    return app(message, context() if of is None else of)


def to_ones(message, context):
    content = flwr.RecordDict({"arrays": model(np.ones(DIM))})
    return flwr.Message(content, reply_to=message)


@pytest.mark.parametrize("kind", ["train", "train.default", "train.other"])
def test_no_name_of_training_passes_the_mod_by(kind) -> None:
    """Flower hands a message ``train.default`` to the function that trains on ``train``."""
    answer = ask(trains(to_ones, private_update(L)), kind)
    assert np.linalg.norm(flat(answer.content["arrays"])) == pytest.approx(L)


def test_an_answer_is_a_model_of_the_names_and_type_of_the_servers_and_nothing_else() -> None:
    """All that an app adds may depend on the data: names, types, metrics, even a time to live."""

    def telling(message, context):
        content = flwr.RecordDict(
            {
                "has 12 records": flwr.ArrayRecord({"of patient 3": flwr.Array(np.ones(DIM))}),
                "m": flwr.MetricRecord({"loss": 1.0}),
                "c": flwr.ConfigRecord({"records": 12}),
            }
        )
        return flwr.Message(content, reply_to=message, ttl=12.0)

    for mod in (private_update(L), private_update(L, Z)):
        start = model(np.zeros((2, 2)), np.float32)
        answer = ask(trains(telling, mod), start=start)
        assert list(answer.content) == ["arrays"]
        assert list(answer.content["arrays"]) == ["w"]
        (reported,) = answer.content["arrays"].to_numpy_ndarrays()
        assert (reported.dtype, reported.shape) == (np.float32, (2, 2))
        assert answer.metadata.ttl == pytest.approx(1000, abs=100)


def replaces(message, context):
    message.content["arrays"] = model(np.full(DIM, 1e6))
    return flwr.Message(message.content, reply_to=message)


def changes(message, context):
    message.content["arrays"]["w"] = flwr.Array(np.full(DIM, 1e6))
    return flwr.Message(message.content, reply_to=message)


def empties(message, context):
    message.content["arrays"].to_numpy_ndarrays(keep_input=False)
    return flwr.Message(flwr.RecordDict({"w": model(np.full(DIM, 1e6))}), reply_to=message)


@pytest.mark.parametrize("train", [replaces, changes, empties])
def test_a_move_is_from_the_model_that_came_whatever_the_app_makes_of_the_message(train) -> None:
    """Answering with the message that came, its model changed, is usual on Flower."""
    answer = ask(trains(train, private_update(L)))
    assert np.linalg.norm(flat(answer.content["arrays"])) == pytest.approx(L)


def raises(message, context):
    raise ValueError("record 12 of patient 3 has no age")


def exits(message, context):
    raise SystemExit("record 12 of patient 3 has no age")


def answers_an_error(message, context):
    return flwr.Message(flwr.Error(0, "record 12 of patient 3"), reply_to=message)


def diverges(message, context):
    return flwr.Message(flwr.RecordDict({"w": model(np.full(DIM, np.nan))}), reply_to=message)


def grows(message, context):
    return flwr.Message(flwr.RecordDict({"w": model(np.ones(DIM + 1))}), reply_to=message)


def sends_nothing(message, context):
    return flwr.Message(flwr.RecordDict(), reply_to=message)


FAILING = [raises, answers_an_error, diverges, grows, sends_nothing]


@pytest.mark.parametrize("train", FAILING)
def test_what_went_wrong_in_training_stays_with_the_client(train) -> None:
    """Flower sends the server the text of an exception, and that of an error for an answer."""
    app = trains(train, private_update(L))
    with pytest.raises(TrainingFailed, match=r"^the client's log states why$") as failed:
        ask(app)
    assert failed.value.__cause__ is not None


@pytest.mark.parametrize("train", [*FAILING, exits])
def test_that_training_failed_stays_with_a_client_that_adds_noise(train, caplog) -> None:
    """A server finds models at which training fails for some data and not for others."""
    caplog.set_level("ERROR", logger="flwr")
    start = model(np.full(DIM, 100.0))
    answer = flat(ask(trains(train, private_update(L, Z)), start=start).content["arrays"])
    assert np.linalg.norm(answer - 100) < 9.4 * Z * 2 * L * np.sqrt(DIM)  # noise ends there
    assert (answer != 100).all()
    assert caplog.messages == ["Training failed: the answer is noise alone"]
    assert caplog.records[0].exc_info is not None


@pytest.mark.parametrize("kind", ["evaluate", "query", "evaluate.default"])
def test_a_client_that_adds_noise_answers_nothing_else(kind) -> None:
    asked = []

    def telling(message, context):
        asked.append(message)
        return flwr.Message(
            flwr.RecordDict({"m": flwr.MetricRecord({"loss": 0.123})}), reply_to=message
        )

    if "." not in kind:
        answer = ask(trains(telling, private_update(L)), kind)  # the server is trusted
        assert answer.content["m"]["loss"] == 0.123
        asked.clear()
    with pytest.raises(OnlyTrains, match=r"^this client answers messages to train, to which"):
        ask(trains(telling, private_update(L, Z)), kind)
    assert asked == []


def test_what_the_server_sends_wrong_is_named_and_costs_nothing() -> None:
    own = context()
    app = trains(to_ones, private_update(L, Z, budget=TWICE, simulation=True))
    with pytest.raises(ValueError, match=r"message: wanted one with one ArrayRecord, got 0 of"):
        app(flwr.Message(flwr.RecordDict(), 7, "train"), own)
    with pytest.raises(ValueError, match=r"arrays: wanted .*, got \['int64'\]"):
        ask(app, of=own, start=model(np.zeros(DIM), np.int64))
    assert not own.state


def test_values_on_a_grid() -> None:
    grid = 2.0**-10
    answer = ask(trains(to_ones, private_update(L, Z, grid=grid)))
    steps = flat(answer.content["arrays"]) / grid
    np.testing.assert_array_equal(steps, np.rint(steps))


@pytest.fixture(params=["file", "state"])
def own(request: pytest.FixtureRequest, tmp_path: Path) -> flwr.Context:
    """A client that keeps its ledger here or there."""
    return context(**{"dpmesh-ledger": str(tmp_path / "ledger")} if request.param == "file" else {})


def test_nothing_is_answered_beyond_the_budget(own) -> None:
    asked = []

    def train(message, context):
        asked.append(message)
        return to_ones(message, context)

    app = trains(train, private_update(L, Z, budget=TWICE, simulation=True))
    answers = [flat(ask(app, kind, of=own).content["arrays"]) for kind in ("train", "train.other")]
    assert (answers[0] != answers[1]).all()
    for _ in range(2):
        with pytest.raises(OverBudget, match=r"^the next release would cost epsilon .*, more than"):
            ask(app, of=own)
    assert len(asked) == 2


def test_it_is_counted_before_training_begins(own) -> None:
    """A process that is killed has counted what it may have sent."""

    def killed(message, context):
        raise KeyboardInterrupt

    app = trains(killed, private_update(L, Z, budget=TWICE, simulation=True))
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            ask(app, of=own)
    with pytest.raises(OverBudget):
        ask(app, of=own)


def test_an_answer_of_noise_alone_is_counted(own) -> None:
    """Else the server would learn from a client's patience whether training failed."""
    app = trains(raises, private_update(L, Z, budget=TWICE, simulation=True))
    ask(app, of=own), ask(app, of=own)
    with pytest.raises(OverBudget):
        ask(app, of=own)


def test_all_mods_write_into_one_ledger(own) -> None:
    """Also what has no budget, and noise of another kind."""
    first, second = private_update(L, 2 * Z), private_update(2 * L, 3 * Z, grid=2.0**-20)
    for mod in (first, second, second):
        ask(trains(to_ones, mod), of=own)
    fine = dm.privacy.Gaussian(3 * Z, grid=2.0**-20)
    mechanisms = dm.privacy.Gaussian(2 * Z), fine, fine, dm.privacy.Gaussian(Z)
    bound = dm.privacy.Sensitivity(1.0, "l2", "a test")
    plan = dm.privacy.Plan(
        releases=tuple(
            dm.privacy.Release(t, mechanism, bound) for t, mechanism in enumerate(mechanisms)
        ),
        neighboring_relation="replace_one",
        unit="user",
    )
    epsilon = plan.cost(1e-5).epsilon
    for factor in (0.9999, 1.0):
        budget = dm.privacy.Budget(factor * epsilon, delta=1e-5)
        app = trains(to_ones, private_update(L, Z, budget=budget, simulation=True))
        if factor < 1:
            with pytest.raises(OverBudget):
                ask(app, of=own)
        else:
            ask(app, of=own)


def test_a_file_serves_all_runs_and_many_messages_at_once(tmp_path: Path) -> None:
    file = str(tmp_path / "ledger")
    app = trains(to_ones, private_update(L, Z, budget=TWICE))

    def answered(_: int) -> bool:
        try:
            ask(app, of=context(**{"dpmesh-ledger": file}))
        except OverBudget:
            return False
        return True

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(answered, range(16))) == 2
    assert not answered(0)


def test_a_budget_without_a_file_answers_in_a_simulation_only() -> None:
    """Flower's memory starts empty in each run, which a server can start at will."""
    with pytest.raises(ValueError, match=r"dpmesh-ledger: wanted a file .*, got none"):
        ask(trains(to_ones, private_update(L, Z, budget=TWICE)))
    app = trains(to_ones, private_update(L, Z, budget=TWICE, simulation=True))
    for _ in range(3):
        ask(app)  # in a new run each time


@pytest.mark.parametrize("mod", [private_update(L), private_update(L, Z)])
def test_a_client_tells_its_name_and_nothing_else(mod) -> None:
    for config, name in [
        ({"dpmesh-party": "north", "partition-id": 3}, "north"),
        ({"partition-id": 3}, "3"),
        ({}, "node 7"),
    ]:
        question = flwr.Message(flwr.RecordDict({PARTY: flwr.ConfigRecord()}), 7, "train")
        own = context(**config)
        answer = trains(raises, mod)(question, own)
        assert dict(answer.content) == {PARTY: flwr.ConfigRecord({"name": name})}
        assert not own.state


@pytest.mark.parametrize("path", ["", "ledger", ":memory:"])
def test_a_file_is_named_by_its_whole_path(path) -> None:
    app = trains(to_ones, private_update(L, Z, budget=TWICE, simulation=True))
    with pytest.raises(ValueError, match=r"dpmesh-ledger: wanted an absolute path .*, got a rel"):
        ask(app, of=context(**{"dpmesh-ledger": path}))


def test_nothing_is_answered_where_the_ledger_cannot_be_written(tmp_path: Path) -> None:
    app = trains(to_ones, private_update(L, Z))
    with pytest.raises(sqlite3.Error):
        ask(app, of=context(**{"dpmesh-ledger": str(tmp_path / "no folder" / "ledger")}))
    (tmp_path / "ledger").write_text("something else, and longer than the head of a database" * 9)
    with pytest.raises(sqlite3.Error):
        ask(app, of=context(**{"dpmesh-ledger": str(tmp_path / "ledger")}))


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ValueError, match=r"clipping_norm: wanted .* greater than 0, got -1"):
        private_update(-1)
    with pytest.raises(ValueError, match=r"noise_multiplier: wanted .* greater than 0, got 0"):
        private_update(L, 0)
    with pytest.raises(ValueError, match="grid: wanted a power of 2"):
        private_update(L, Z, grid=0.3)
    with pytest.raises(ValueError, match=r"budget: wanted a .*Budget or None, got 3"):
        private_update(L, Z, budget=3)
    for alone in ({"grid": 0.5}, {"budget": TWICE}):
        (name,) = alone
        with pytest.raises(ValueError, match=f"noise_multiplier: .* there is a {name}, got None"):
            private_update(L, **alone)
    little = dm.privacy.Budget(0.1, delta=1e-5)
    with pytest.raises(OverBudget, match=r"more than the budget of epsilon = 0\.1 at delta"):
        private_update(L, Z, budget=little)
