"""Where a model came from: what a party signs of the model that it wrote, and who has it, too."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, NamedTuple

from dpmesh._validate import fail
from dpmesh.deploy.contract import Contract
from dpmesh.deploy.signing import SigningKey, digest, is_signed
from dpmesh.deploy.sums import Seal
from dpmesh.models import Model

NAME = "provenance"


class Origin(NamedTuple):
    """Where a model came from.

    Attributes
    ----------
    party
        Who wrote and signed it.
    rounds
        How many rounds it is made of.
    sealed_by
        Who signed the totals that it is made of; nobody where the parties' models differ.
    """

    party: str
    rounds: int
    sealed_by: tuple[str, ...]


def signed(model: Model, contract: Contract, key: SigningKey, **origin: Any) -> Model:
    """Return a model with what shows where it came from, under its party's signature.

    Parameters
    ----------
    model, contract
        The model, and under which contract it was made.
    key
        The party's.
    origin
        Its name (`party`), how many `rounds` the model is made of, and what parties signed at the
        end (`seals`), as texts.
    """
    made = replace(model, about={**model.about, NAME: {"contract": contract.hash.hex(), **origin}})
    signature = key.sign(*_fields(made)).hex()
    return replace(made, about={**made.about, NAME: {**made.about[NAME], "signature": signature}})


def verified(model: Model, contract: Contract) -> Origin:
    """Return where a model came from: a party's signature shows it, and that nobody changed it.

    Raises
    ------
    ValueError
        If it comes from another contract or version, or its party or others did not sign it.
    """
    origin = dict(model.about.get(NAME) or fail("model", "one that dpmesh node wrote", "another"))
    if origin["contract"] != contract.hash.hex():
        got = f"that of {origin['contract']}"
        fail("model", f"that of contract {contract.hash.hex()} under this version of dpmesh", got)
    parties = {party.name: party.public_key for party in contract.parties}
    signature, key = bytes.fromhex(origin["signature"]), parties.get(origin["party"], b"")
    if not is_signed(key, signature, *_fields(model)):
        fail("model", f"as {origin['party']} signed it", "another, or one that was changed")
    seals = [Seal.read(bytes.fromhex(seal), contract) for seal in origin["seals"]]
    whole = origin["rounds"] == contract.terms.rounds
    ended = [seal for seal in seals if whole and seal.at.round == contract.steps]
    signers = {seal.party for seal in ended}
    if len({seal.transcript for seal in seals}) > 1 or len(ended) < len(seals):
        fail("model", "one whose parties signed the same totals", "one of which they differ")
    if contract.has_one_model and len(signers) < contract.sealing:
        fail("model", f"one that {contract.sealing} parties sealed", f"one that {len(signers)} did")
    names = tuple(contract.parties[party].name for party in sorted(signers))
    return Origin(origin["party"], origin["rounds"], names)


def _fields(model: Model) -> tuple[bytes, ...]:
    """Return what a party signs: all that the file holds but the signature."""
    about = {**model.about, NAME: {**model.about[NAME], "signature": None}}
    text = json.dumps([model.as_dict(), about], sort_keys=True)
    return b"dpmesh model 1", text.encode(), digest(model.params.tobytes())
