"""Fraud shares from what a store's log has learnt: answers whose outcome is known by now, as rows to recalibrate with."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from turncoat.arrays import Array
from turncoat.errors import DataError
from turncoat.scoring import Detector
from turncoat.serving.records import unpack_log_content
from turncoat.serving.stores import LABEL, Store


@dataclass(frozen=True, eq=False)
class LabeledScores:
    """N answers whose outcome is known, those of a customer together."""

    beliefs: Array  # [N, K] as they were when the transaction was scored
    labels: Array  # [N]
    offsets: Array  # [customers + 1]
    external: Array | None  # [N] the ranker's scores

    @property
    def n_rows(self) -> int:
        """How many."""
        return len(self.labels)


async def collect_labeled_scores(
    store: Store, detector: Detector, now: float, delay: float, unreported: bool = True
) -> LabeledScores:
    """The log's answers of this model, each with its last reported label; not those of a replay, which may be rows it was fitted on.

    If `unreported`, those older than `delay` seconds (by the server's clock), of which one without a report counts as genuine. Younger ones
    are left out, reported or not: so far mostly frauds are reported of them. Otherwise those that were reported, which must be all of
    some transactions, not the frauds among them.
    """
    scored: dict[tuple[str, str], tuple[float, tuple[float, ...], float | None]] = {}
    reported: dict[tuple[str, str], int] = {}
    place = ""
    while entries := await store.read_log(after=place):
        place = entries[-1].cursor
        for entry in entries:
            name = (entry.parties[0][0], entry.transaction_id)
            logged = unpack_log_content(entry.content)
            if entry.kind == LABEL:
                reported[name] = int(logged.label or 0)
            elif logged.model == detector.digest_ and not logged.is_replayed:
                scored.setdefault(name, (entry.written_at, logged.belief, logged.external))
    names = sorted(
        name
        for name, (at, _, _) in scored.items()
        if (at <= now - delay if unreported else name in reported)
    )
    if not any(name in reported for name in names):
        n_young = sum(name in reported for name in scored)
        raise DataError(
            f"no outcome can be used: {len(reported):,} were reported, {n_young:,} of them of transactions that this model scored live"
            + (
                f", all within the last {delay / 86400:g} days, in which others may still be reported"
                if n_young
                else ""
            )
            + ". Report them to /v1/labels; wait, or see --delay-days and --reported-only"
        )
    if all(reported.get(name, 0) for name in names):
        raise DataError(
            f"all {len(names):,} outcomes are frauds, of which no share can be told. Report genuine transactions, too"
        )
    customers = np.array([customer for customer, _ in names])
    offsets = np.append(
        np.flatnonzero(np.append(True, customers[1:] != customers[:-1])), len(names)
    )
    external = [scored[name][2] for name in names]
    return LabeledScores(
        beliefs=np.array([scored[name][1] for name in names]),
        labels=np.array([reported.get(name, 0) for name in names], dtype=np.int8),
        offsets=offsets.astype(np.int64),
        external=np.array(external, dtype=np.float64)
        if all(one is not None for one in external)
        else None,
    )
