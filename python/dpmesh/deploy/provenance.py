"""Where a model, or answers, came from: what a party signs of them, and who has the same."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias, TypeVar

from dpmesh._validate import fail
from dpmesh.deploy.contract import Contract
from dpmesh.deploy.signing import SigningKey, digest, is_signed
from dpmesh.deploy.sums import Seal
from dpmesh.models import Model

NAME = "provenance"
_KINDS = {"contract": str, "party": str, "rounds": int, "seals": list, "signature": str}

Made: TypeAlias = "Model | dict[str, Any]"
"""What parties made: a model, or answers to questions in plain types."""
MadeT = TypeVar("MadeT", Model, dict[str, Any])


class Origin(NamedTuple):
    """Where a model, or answers, came from.

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


def signed(made: MadeT, contract: Contract, key: SigningKey, **origin: Any) -> MadeT:
    """Return a model, or answers, with what shows where they came from, under a signature.

    Parameters
    ----------
    made, contract
        Which, and under which contract.
    key
        The party's.
    origin
        Its name (`party`), how many `rounds` the model is made of, and what parties signed at the
        end (`seals`), as texts.
    """
    whole = {"contract": contract.hash.hex(), **origin, "signature": None}
    return _with(made, whole | {"signature": key.sign(*_fields(_with(made, whole))).hex()})


def verified(made: Made, contract: Contract) -> Origin:
    """Return where a model, or answers, came from, as a party's signature shows.

    Raises
    ------
    ValueError
        If it comes from another contract or version, or its party or others did not sign it.
    """
    about: Any = _about(made) if isinstance(made, (Model, dict)) else {}
    origin = about.get(NAME)
    if not (isinstance(origin, dict) and {k: type(v) for k, v in origin.items()} == _KINDS):
        fail("model", "one that dpmesh node wrote", "another")
    if origin["contract"] != contract.hash.hex():
        got = f"that of {origin['contract']}"
        fail("model", f"that of contract {contract.hash.hex()} under this version of dpmesh", got)
    parties = {party.name: party.public_key for party in contract.parties}
    signature, key = bytes.fromhex(origin["signature"]), parties.get(origin["party"], b"")
    if not is_signed(key, signature, *_fields(made)):
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


def _about(made: Made) -> dict[str, Any]:
    return dict(made.about) if isinstance(made, Model) else made


def _with(made: MadeT, origin: dict[str, Any]) -> MadeT:
    about = {**_about(made), NAME: origin}
    return replace(made, about=about) if isinstance(made, Model) else about


def _fields(made: Made) -> tuple[bytes, ...]:
    """Return what a party signs: all that the file holds but the signature."""
    about = {**_about(made), NAME: {**_about(made)[NAME], "signature": None}}
    if not isinstance(made, Model):
        return b"dpmesh answers 1", json.dumps(about, sort_keys=True).encode()
    text = json.dumps([made.as_dict(), about], sort_keys=True)
    return b"dpmesh model 1", text.encode(), digest(made.params.tobytes())
