"""Pieces of the two-sided chains that a fit can leave out, to measure what each is worth."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from turncoat.features.chains import Chains


@dataclass(frozen=True)
class ChainPieces:
    """What the chains may learn; a piece that is False is left out of the fit."""

    time_gaps: bool = True  # without: the customer's chain counts transactions, not days
    own_profile: bool = True  # without: one profile for all customers, which none changes
    row_share: bool = True  # without: every transaction of an intrusion is the intruder's
    counterparty: bool = True  # without: counterparties have no chain
    phases: bool = True  # without: compromises have one memoryless phase

    def leave_out(self, name: str) -> ChainPieces:
        """The same pieces but one."""
        return replace(self, **{name: False})


ALL_PIECES = ChainPieces()
PIECE_NAMES = tuple(field.name for field in fields(ChainPieces))
_OF_CUSTOMER = ("time_gaps", "own_profile", "row_share")


def has_piece(chains: Chains, name: str) -> bool:
    """Whether fitted chains have this piece, so that leaving it out changes them."""
    if name in _OF_CUSTOMER:
        return chains.intruder is not None
    others = [one for one in chains.compromise if one is not None]
    return any(name == "counterparty" or one.n_phases > 1 for one in others)
