"""Payments with compromised terminals and stolen cards, and detectors of their causes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
import polars as pl

from tests.features.sample_data import DAY, Data
from tests.scoring.detectors import TREES, model_of, time_split
from turncoat import Detector
from turncoat.data.parsing import parse_row
from turncoat.data.presets import load_preset
from turncoat.data.reading import read
from turncoat.data.simulators.handbook import FraudProcess, simulate_handbook
from turncoat.data.transactions import Transactions
from turncoat.features import UNKNOWN, Features
from turncoat.features.chains import INTRUDER, find_compromises
from turncoat.scoring import DetectorState, Score
from turncoat.scoring.causes import CauseScore
from turncoat.scoring.rankers import CausesRanker, CorrectedCausesRanker

TERMINAL, AMOUNT, DEVICE = "TERMINAL_ID", "TX_AMOUNT", "device_id"
# More compromises than published, so that small files have enough frauds of every cause.
BUSY = FraudProcess(terminal_hazard_per_day=1e-3, customer_hazard_per_day=2e-3)


@cache
def payments(
    n_rows: int = 12_000, seed: int = 1, n_days: int = 90, process: FraudProcess = BUSY
) -> Data:
    """Simulated payments, read; tests share them and must not change them."""
    frame = simulate_handbook(n_rows, seed, n_days=n_days, process=process)["transactions"]
    return Data(read(frame, "handbook"), frame.to_dicts())


@cache
def device_payments(
    n_rows: int = 9000, process: FraudProcess = BUSY, counterparties: tuple[str, ...] = ()
) -> Data:
    """Payments that name a device, too: as numbers, like terminals, and not all of them.

    For three weeks most payments with one device in four are fraud. `counterparties` may be given
    in another order, or without one of the two.
    """
    rng = np.random.default_rng(4)
    frame = simulate_handbook(n_rows, 1, n_days=90, process=process)["transactions"]
    devices = rng.integers(60, size=n_rows)
    days = (frame["TX_DATETIME"] - frame["TX_DATETIME"].min()).dt.total_seconds().to_numpy() / DAY
    begins = np.where(np.arange(60) % 4 == 0, rng.uniform(5, 80, 60), np.inf)[devices]
    is_bad = (days >= begins) & (days < begins + 21) & (rng.random(n_rows) < 0.8)
    frame = frame.with_columns(
        pl.Series(DEVICE, np.where(rng.random(n_rows) < 0.1, None, devices).tolist(), pl.Int64),
        TX_FRAUD=pl.Series(np.maximum(frame["TX_FRAUD"].to_numpy(), is_bad)),
    )
    schema = replace(load_preset("handbook"), counterparties=counterparties or (DEVICE, TERMINAL))
    return Data(read(frame, schema), frame.to_dicts())


@cache
def device_detector(kind: str = "chains") -> Detector:
    """A fitted detector of payments with two counterparties; tests must not change it."""
    transactions = device_payments().transactions
    made = Detector(Features(min_count=4), model_of("expected-log", 2), kind=kind, trees=TREES)
    return made.fit(transactions, time_split(transactions))


def chains_detector(kind: str = "chains") -> Detector:
    """A fitted detector of the causes of fraud; tests share it and must not change it."""
    return _fit_detector(kind)


@cache
def _fit_detector(kind: str) -> Detector:
    transactions = payments().transactions
    made = Detector(Features(min_count=4), model_of("expected-log", 2), kind=kind, trees=TREES)
    return made.fit(transactions, time_split(transactions))


def cause_score_of(made: Detector) -> CauseScore:
    """The causes of a detector of either kind."""
    ranker = made.calibration_.ranker
    if isinstance(ranker, CorrectedCausesRanker):
        return ranker.cause_score
    assert isinstance(ranker, CausesRanker)
    return ranker.source


def combine(made: Detector, weights: Any, intercept: float) -> Detector:
    """The same detector, with a regression of the causes."""
    ranker, old = made.calibration_.ranker, cause_score_of(made)
    score = CauseScore(old.scorecard, np.asarray(weights, float), intercept)
    is_plain = isinstance(ranker, CausesRanker)
    new = replace(ranker, **{"source" if is_plain else "cause_score": score})
    return made._replace_calibration(replace(made.calibration_, ranker=new))


def with_labels(transactions: Transactions, labels: Any) -> Transactions:
    return replace(transactions, labels=np.asarray(labels, np.int8))


@dataclass
class Service:
    """Scores payments one by one; frauds are reported with what other causes explained."""

    detector: Detector
    customers: dict[Any, bytes | None] = field(default_factory=dict)
    counterparties: dict[Any, bytes | None] = field(default_factory=dict)

    def take(self, customer: Any, row: dict[str, Any], is_fraud: bool = False) -> Score:
        """Score one payment, then report its label if it is fraud."""
        live, schema = self.detector.live, self.detector.features_.plan.schema
        parsed = parse_row(schema, row)
        keys = list(zip(schema.counterparties, parsed.counterparties, strict=True))
        others = tuple(self.counterparties.get(key) for key in keys)
        steps = live.advance(
            [DetectorState(self.customers.get(customer), others)], [parsed], [UNKNOWN]
        )
        self.customers[customer], after = steps.states[0]
        assert steps.causes is not None
        explained = float(steps.causes[0, INTRUDER])
        compromises = steps.causes[0, find_compromises(len(keys))].tolist()
        if is_fraud:
            own = live.report_own_label(DetectorState(self.customers[customer]), parsed.time, 1)
            self.customers[customer] = own.customer
        for key, record, risk in zip(keys, after, compromises, strict=True):
            if key[1] is not None:
                self.counterparties[key] = record
                if is_fraud:
                    about = parsed.time, 1, UNKNOWN, explained
                    self.counterparties[key] = live.report_label(key[0], record, *about)
            explained = 1.0 - (1.0 - explained) * (1.0 - risk)
        return live.score_steps(steps)[0]


def replay_payments(made: Detector, data: Data, n_rows: int) -> dict[int, Score]:
    """Live scores of the first payments, by their place among the transactions."""
    transactions, service, found = data.transactions, Service(made), {}
    for place in data.live_order[:n_rows].tolist():
        row = data.rows[transactions.file_rows[place]]
        customer, label = transactions.customer_codes[place], np.asarray(transactions.labels)[place]
        found[place] = service.take(customer, row, label == 1)
    return found
