"""What leaves a client of Flower, to a server that is curious: asked through its own ClientApp."""

from __future__ import annotations

import numpy as np
import pytest

flwr = pytest.importorskip("flwr.app", reason="needs the extra 'flower'")

from flwr.clientapp import ClientApp  # noqa: E402

from dpmesh.deploy.flower import TrainingFailed, flat, private_update  # noqa: E402
from dpmesh.deploy.flower.supernode import PARTY  # noqa: E402

pytestmark = pytest.mark.usefixtures("inside_an_app")

L, DIM = 0.3, 4


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

    answer = ask(trains(telling, private_update(L)), start=model(np.zeros((2, 2)), np.float32))
    assert list(answer.content) == ["arrays"]
    assert list(answer.content["arrays"]) == ["w"]
    (reported,) = answer.content["arrays"].to_numpy_ndarrays()
    assert (reported.dtype, reported.shape) == (np.float32, (2, 2))
    assert answer.metadata.ttl == pytest.approx(1000, abs=100)
    served = ask(trains(telling, private_update(L)), "evaluate")  # the server is trusted
    assert served.content["m"]["loss"] == 1.0


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


def answers_an_error(message, context):
    return flwr.Message(flwr.Error(0, "record 12 of patient 3"), reply_to=message)


def diverges(message, context):
    return flwr.Message(flwr.RecordDict({"w": model(np.full(DIM, np.nan))}), reply_to=message)


def grows(message, context):
    return flwr.Message(flwr.RecordDict({"w": model(np.ones(DIM + 1))}), reply_to=message)


def sends_nothing(message, context):
    return flwr.Message(flwr.RecordDict(), reply_to=message)


@pytest.mark.parametrize("train", [raises, answers_an_error, diverges, grows, sends_nothing])
def test_what_went_wrong_in_training_stays_with_the_client(train) -> None:
    """Flower sends the server the text of an exception, and that of an error for an answer."""
    app = trains(train, private_update(L))
    with pytest.raises(TrainingFailed, match=r"^the client's log states why$") as failed:
        ask(app)
    assert failed.value.__cause__ is not None


def test_what_the_server_sends_wrong_is_named() -> None:
    app = trains(to_ones, private_update(L))
    with pytest.raises(ValueError, match=r"message: wanted one with one ArrayRecord, got 0 of"):
        app(flwr.Message(flwr.RecordDict(), 7, "train"), context())
    with pytest.raises(ValueError, match=r"arrays: wanted .*, got \['int64'\]"):
        ask(app, start=model(np.zeros(DIM), np.int64))


def test_a_client_tells_its_name_and_nothing_else() -> None:
    for config, name in [
        ({"dpmesh-party": "north", "partition-id": 3}, "north"),
        ({"partition-id": 3}, "3"),
        ({}, "node 7"),
    ]:
        question = flwr.Message(flwr.RecordDict({PARTY: flwr.ConfigRecord()}), 7, "train")
        own = context(**config)
        answer = trains(raises, private_update(L))(question, own)
        assert dict(answer.content) == {PARTY: flwr.ConfigRecord({"name": name})}
        assert not own.state


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ValueError, match=r"clipping_norm: wanted .* greater than 0, got -1"):
        private_update(-1)
