"""Payments with compromised terminals and stolen cards, and detectors of their causes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np

from tests.features.sample_data import Data
from tests.scoring.detectors import TREES, model_of, time_split
from turncoat import Detector
from turncoat.data.categories import normalize_category
from turncoat.data.parsing import parse_row
from turncoat.data.reading import read
from turncoat.data.simulators.handbook import FraudProcess, simulate_handbook
from turncoat.data.transactions import Transactions
from turncoat.features import UNKNOWN, Features
from turncoat.features.chains import INTRUDER
from turncoat.scoring import DetectorState, Score
from turncoat.scoring.causes import CauseScore
from turncoat.scoring.rankers import CausesRanker, CorrectedCausesRanker

TERMINAL, AMOUNT = "TERMINAL_ID", "TX_AMOUNT"
# More compromises than published, so that small files have enough frauds of every cause.
BUSY = FraudProcess(terminal_hazard_per_day=1e-3, customer_hazard_per_day=2e-3)


@cache
def payments(
    n_rows: int = 12_000, seed: int = 1, n_days: int = 90, process: FraudProcess = BUSY
) -> Data:
    """Simulated payments, read; tests share them and must not change them."""
    frame = simulate_handbook(n_rows, seed, n_days=n_days, process=process)["transactions"]
    return Data(read(frame, "handbook"), frame.to_dicts())


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
    """Scores payments one by one; frauds are reported with what the customer's side explained."""

    detector: Detector
    customers: dict[Any, bytes | None] = field(default_factory=dict)
    terminals: dict[str, bytes | None] = field(default_factory=dict)

    def take(self, customer: Any, row: dict[str, Any], is_fraud: bool = False) -> Score:
        """Score one payment, then report its label if it is fraud."""
        live, terminal = self.detector.live, str(normalize_category(row[TERMINAL]))
        state = DetectorState(self.customers.get(customer), self.terminals.get(terminal))
        parsed = parse_row(self.detector.features_.plan.schema, row)
        steps = live.advance([state], [parsed], [UNKNOWN])
        self.customers[customer], after = steps.states[0]
        if is_fraud:
            assert steps.causes is not None
            own = live.report_own_label(DetectorState(self.customers[customer]), parsed.time, 1)
            self.customers[customer] = own.customer
            about = parsed.time, 1, UNKNOWN, float(steps.causes[0, INTRUDER])
            after = live.report_label(DetectorState(None, after), *about).counterparty
        self.terminals[terminal] = after
        return live.score_steps(steps)[0]


def replay_payments(made: Detector, data: Data, n_rows: int) -> dict[int, Score]:
    """Live scores of the first payments, by their place among the transactions."""
    transactions, service, found = data.transactions, Service(made), {}
    for place in data.live_order[:n_rows].tolist():
        row = data.rows[transactions.file_rows[place]]
        customer, label = transactions.customer_codes[place], np.asarray(transactions.labels)[place]
        found[place] = service.take(customer, row, label == 1)
    return found
