"""What one node can see of parties that send different rows to different receivers."""

from __future__ import annotations

import logging
from contextlib import suppress

from dpmesh.deploy.contract import Contract
from dpmesh.deploy.folder import Folder
from dpmesh.deploy.steps import Stored
from dpmesh.deploy.wire import Ask, Position, Row, place_and_hash

_log = logging.getLogger("dpmesh")


class Witness:
    """Compares rows with those that came before, and with what others say that they mixed.

    Parameters
    ----------
    contract, folder, number
        Those of the node.
    """

    def __init__(self, contract: Contract, folder: Folder, number: int) -> None:
        self.contract, self.folder, self.number = contract, folder, number
        self.equivocating: set[str] = set()
        """Names of parties of which two different rows of one position were seen, both signed."""
        self.disputed: set[str] = set()
        """Names of parties of whose rows others say that they mixed another than this node, or
        than each other."""

    def compare(self, ask: Ask, step: Stored) -> None:
        """Note rows that came too late, and who signed two different ones of one position."""
        kept: dict[tuple[Position, int], Row] = {}
        others = [message for message in ask.attached if message not in step.rows]
        for message in step.rows if others else ():
            row = Row.read(message, self.contract, stored=True)
            kept[row.at, row.party] = row
        for message in others:
            with suppress(ValueError):
                row = Row.read(message, self.contract)
                with self.folder.transaction():
                    self.folder.hear(self.contract, row, message)
                same = kept.get((row.at, row.party))
                if same is not None and (same.codes, same.mixed) != (row.codes, row.mixed):
                    self._equivocates(row.party)

    def compare_mixed(self, messages: tuple[bytes, ...], last: Stored | None) -> None:
        """Note rows of which others say that they mixed another than this node, or each other."""
        contract, folder = self.contract, self.folder
        names = [party.name for party in contract.parties]
        rows = [Row.read(message, contract, stored=True) for message in messages]
        said = [(*each, names[row.party]) for row in rows for each in row.mixes(contract).items()]
        own = (folder.step(contract, at) for (at, party), *_ in said if party == self.number)
        sent = (step.row for step in own if step is not None and step.row is not None)
        kept = (*sent, *(() if last is None else last.rows), *messages)
        hashes = (place_and_hash(contract, message) for message in kept)
        seen = {place: (hashed, names[self.number]) for place, hashed in hashes}
        for place, hashed, by in said:
            before, other = seen.setdefault(place, (hashed, by))
            if before != hashed:
                self._disputes(*place, by, other)

    def _disputes(self, at: Position, party: int, one: str, other: str) -> None:
        name = self.contract.parties[party].name
        if name not in self.disputed:
            self.disputed.add(name)
            text = "%s and %s have different rows of %s in round %d: it signed both or its folder "
            text += "was restored, or one of the two lies"
            _log.warning(text, one, other, name, at.round)

    def _equivocates(self, party: int) -> None:
        name = self.contract.parties[party].name
        if name not in self.equivocating:
            self.equivocating.add(name)
            _log.warning(
                "%s signed two different rows of one position: it lies, or its folder was restored",
                name,
            )
