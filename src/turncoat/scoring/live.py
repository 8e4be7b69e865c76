"""Live scoring: advance stored states by new transactions, and score them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from turncoat.arrays import Array
from turncoat.data.parsing import TransactionRow
from turncoat.errors import ConfigError, DataError, StateError
from turncoat.features import UNKNOWN, FeatureRow, Features, FeatureState
from turncoat.models.base import HiddenMarkovModel
from turncoat.scoring.calibration import FILTERED, Calibration
from turncoat.scoring.causes import CauseScore
from turncoat.scoring.descriptions import HISTORY, FeatureDescriber
from turncoat.scoring.path import BeliefPath, compute_path_columns
from turncoat.scoring.rankers import CausesRanker, CorrectedCausesRanker, RankerRows, XGBoostRanker
from turncoat.scoring.reasons import Reasons, list_reasons
from turncoat.scoring.scores import Score, compute_beta_interval, compute_entropy

_CALENDAR_FROM_S = 20 * 365.25 * 86400.0  # later numeric times count seconds since 1970
_HEADER = struct.Struct("<8sIQ")  # digest of the model, number of regimes, transactions seen


class DetectorState(NamedTuple):
    """The records that a service stores of a customer and of a counterparty, of a fixed size."""

    customer: bytes | None = None  # None: a new customer
    counterparty: bytes | None = None


class UnpackedState(NamedTuple):
    """The content of a `DetectorState`."""

    n_seen: int  # transactions of the customer
    belief: Array | None  # [K]; None for a new customer
    features: FeatureState


class FilterSteps(NamedTuple):
    """N transactions that states were advanced by, in order, and everything to score them with."""

    states: Sequence[DetectorState]  # after each transaction
    continuous: Array  # [N, D] features
    categorical: Array  # [N, J]
    prior_beliefs: Array  # [N, K] before each transaction
    has_prior: Array  # [N] False for a customer's first transaction
    beliefs: Array  # [N, K] after each transaction
    n_seen: Sequence[int]  # transactions of the customer, this one included
    ranker_scores: Array | None  # [N]; None without a ranker
    causes: Array | None = None  # [N, C]; None without two-sided chains

    def take(self, rows: Array) -> FilterSteps:
        """What reasons need of the transactions at these places."""
        cells = self.continuous[rows], self.categorical[rows]
        beliefs = self.prior_beliefs[rows], self.has_prior[rows], self.beliefs[rows]
        causes = None if self.causes is None else self.causes[rows]
        return FilterSteps([], *cells, *beliefs, [], None, causes)


@dataclass(frozen=True, eq=False)
class LiveScorer:
    """Scores transactions one by one or in small batches, from states that the caller stores."""

    features: Features
    model: HiddenMarkovModel[Any]
    calibration: Calibration
    label_likelihoods: Array  # [2, K] P(label | state)
    digest: str  # of the model; states made with another one are refused

    def advance(
        self,
        states: Sequence[DetectorState],
        rows: Sequence[TransactionRow],
        labels: Sequence[int],
        previous: Array | None = None,
    ) -> FilterSteps:
        """Advance states by N transactions in order; faster than one at a time.

        Labels as in `Features.step_batch`.
        `previous` [N, 2] links transactions of the same customer (column 0) or counterparty
        (column 1): the index of the one before, whose state is used instead of `states`, or -1.
        """
        links = np.full((len(rows), 2), -1) if previous is None else previous
        n_seen, stored, is_known, records = self._unpack(states)
        after, cells, codes, causes = self.features.step_batch(records, rows, labels, links)
        customers, ranker = np.ascontiguousarray(links[:, 0]), self.calibration.ranker
        stepped = self.model.step_batch(stored, is_known, cells, codes, customers)
        for i, earlier in enumerate(customers.tolist()):
            n_seen[i] = (n_seen[i] if earlier < 0 else n_seen[earlier]) + 1
        packed = self._pack(stepped[2], n_seen, after)
        steps = FilterSteps(packed, cells, codes, *stepped, n_seen, None, causes)
        if ranker is None:
            return steps
        return steps._replace(ranker_scores=ranker.score(self._make_ranker_rows(steps, rows)))

    def score_steps(
        self,
        steps: FilterSteps,
        *,
        level: float = 0.9,
        n_reasons: int | None = 4,
        min_probability: float = 0.0,
        opens_path: bool = False,
    ) -> list[Score]:
        """Score each transaction, with its `n_reasons` strongest reasons (None: all of them).

        Only transactions with at least `min_probability` get reasons. `opens_path` adds the
        regimes' own reasons to those of trees.
        """
        if not 0 < level < 1:
            raise ConfigError(f"level is {level!r}; it must be above 0 and below 1, such as 0.9")
        beliefs, fraud_state = steps.beliefs, self.calibration.regimes[FILTERED].fraud_state
        probability, variance = self.calibration.predict(beliefs, FILTERED, steps.ranker_scores)
        lower, upper = compute_beta_interval(probability, variance, level)
        reasons: list[Reasons] = [()] * len(beliefs)
        path_reasons = reasons.copy()
        if n_reasons != 0 and len(explained := np.flatnonzero(probability >= min_probability)):
            found = self._explain(steps.take(explained), n_reasons, opens_path)
            for row, *own in zip(explained.tolist(), *found, strict=True):
                reasons[row], path_reasons[row] = own
        intervals = zip(lower.tolist(), upper.tolist(), strict=True)
        raw, rows = beliefs[:, fraud_state].tolist(), map(tuple, beliefs.tolist())
        entropy, regimes = compute_entropy(beliefs).tolist(), beliefs.argmax(axis=1).tolist()
        columns = (raw, rows, entropy, steps.n_seen, regimes, reasons, path_reasons)
        return list(map(Score, probability.tolist(), intervals, *columns))

    def condition(self, state: DetectorState, label: int) -> DetectorState:
        """The state once the label of the customer's latest transaction is known."""
        held = self.unpack(state)
        if held.belief is None:
            raise DataError("this customer has no transaction yet that a label could belong to")
        if label not in (0, 1):
            raise DataError(f"the label is {label!r}; it must be 0 or 1")
        belief = held.belief * self.label_likelihoods[int(label)]
        return self._pack((belief / belief.sum())[None], [held.n_seen], [held.features])[0]

    def report_label(
        self,
        state: DetectorState,
        time: float,
        label: int,
        earlier: int = UNKNOWN,
        explained: float = 0.0,
    ) -> DetectorState:
        """The state once the label of a counterparty's transaction is known.

        The arguments are those of `Features.report_label`.
        """
        before = FeatureState(None, state.counterparty)
        after = self.features.report_label(before, time, label, earlier, explained)
        return DetectorState(state.customer, after.counterparty)

    def report_own_label(
        self, state: DetectorState, time: float, label: int, n_later: int = 0
    ) -> DetectorState:
        """The state once the label of one of the customer's own transactions is known.

        The arguments are those of `Features.report_own_label`. The belief of the regimes stays:
        `condition` updates it.
        """
        held = self.unpack(state)
        if held.belief is None:
            raise DataError("this customer has no transaction yet that a label could belong to")
        features = self.features.report_own_label(held.features, time, label, n_later)
        return self._pack(held.belief[None], [held.n_seen], [features])[0]

    def unpack(self, state: DetectorState) -> UnpackedState:
        """The content of one state; StateError if it was made by another detector."""
        if not isinstance(state, DetectorState):
            kinds = "a DetectorState, or None for a new customer"
            raise StateError(f"a state is {kinds}; found {type(state).__name__}")
        (n_seen,), beliefs, (known,), (features,) = self._unpack([state])
        return UnpackedState(n_seen, beliefs[0] if known else None, features)

    @property
    def has_calendar_times(self) -> bool:
        """Whether times count from 1970 (UTC), and not from a start that only the user knows."""
        last = self.calibration.time_range[1]
        return self.features.plan.schema.time_format is not None or last >= _CALENDAR_FROM_S

    @cached_property
    def _describers(self) -> tuple[FeatureDescriber, FeatureDescriber]:
        """Of the regimes' reasons, and of the trees'."""
        ranker = self.calibration.ranker
        texts = HISTORY, HISTORY if ranker is None else ranker.history_text
        plan, has_dates = self.features.plan, self.has_calendar_times
        regimes, trees = (FeatureDescriber(plan, text, has_dates) for text in texts)
        return regimes, trees

    def _explain(
        self, steps: FilterSteps, n_reasons: int | None, opens_path: bool
    ) -> tuple[list[Reasons], list[Reasons]]:
        """Reasons of each transaction and, if trees gave them, of the history that they saw."""
        cells, codes, ranker = steps.continuous, steps.categorical, self.calibration.ranker
        rows, has_trees = list(map(FeatureRow, cells, codes)), isinstance(ranker, XGBoostRanker)
        of_regimes: list[Reasons] = [()] * len(rows)
        if isinstance(ranker, CausesRanker):
            return self._explain_causes(ranker.source, steps, n_reasons), of_regimes
        if isinstance(ranker, CorrectedCausesRanker):
            if opens_path:
                of_regimes = self._explain_causes(ranker.cause_score, steps, n_reasons)
        elif (opens_path or not has_trees) and self.model.n_states > 1:
            fraud_state = self.calibration.regimes[FILTERED].fraud_state
            predicted = self.model.predict_log_beliefs(steps.prior_beliefs, steps.has_prior)
            terms = self.model.explain_log_odds(fraud_state, predicted, cells, codes)
            of_regimes = list_reasons(terms, self._describers[0], rows, n_reasons)
        if not isinstance(ranker, XGBoostRanker):
            return of_regimes, [()] * len(rows)
        terms = ranker.explain(self._make_ranker_rows(steps))
        return list_reasons(terms, self._describers[1], rows, n_reasons), of_regimes

    def _explain_causes(
        self, score: CauseScore, steps: FilterSteps, n_reasons: int | None
    ) -> list[Reasons]:
        cells = steps.continuous, steps.categorical
        plan = self.features.plan
        columns = () if plan.chains is None else plan.chains.profile_columns
        names = tuple("" if name == plan.schema.amount else name for name in columns)
        causes, counterparty = np.asarray(steps.causes), plan.schema.counterparty
        return score.explain(counterparty, *cells, causes, n_reasons, names or ("",))

    def _make_ranker_rows(
        self, steps: FilterSteps, rows: Sequence[TransactionRow] = ()
    ) -> RankerRows:
        """The transactions for the ranker, with the path [N, P] if it scores with that."""
        cells, path, ranker = (steps.continuous, steps.categorical), None, self.calibration.ranker
        if ranker is not None and ranker.needs_path:
            beliefs = BeliefPath(steps.prior_beliefs, steps.has_prior, steps.beliefs)
            path = compute_path_columns(self.model, beliefs, *cells)
        return RankerRows(rows, *cells, path, steps.causes)

    def _unpack(
        self, states: Sequence[DetectorState]
    ) -> tuple[list[int], Array, Array, list[FeatureState]]:
        """Of N states: transactions seen, beliefs [N, K], whether there is one [N], features."""
        n_states = self.calibration.n_states
        mark, empty = (bytes.fromhex(self.digest), n_states), bytes(8 * n_states)
        start, end = _HEADER.size, _HEADER.size + len(empty)
        n_seen, beliefs, features = [], [], []
        for customer, counterparty in states:
            if customer is None:
                n_seen.append(0)
                beliefs.append(empty)
                features.append(FeatureState(None, counterparty))
                continue
            if len(customer) < end or (header := _HEADER.unpack_from(customer))[:2] != mark:
                remedy = "Rebuild the states by replaying the history"
                raise StateError(f"this state was made by another detector. {remedy}")
            n_seen.append(header[2])
            beliefs.append(customer[start:end])
            features.append(FeatureState(customer[end:] or None, counterparty))
        known = np.array([belief is not empty for belief in beliefs], dtype=np.bool_)
        table = np.frombuffer(bytearray(b"".join(beliefs)), np.float64)
        return n_seen, table.reshape(len(states), n_states), known, features

    def _pack(
        self, beliefs: Array, n_seen: Sequence[int], features: Sequence[FeatureState]
    ) -> list[DetectorState]:
        digest, (_, k) = bytes.fromhex(self.digest), beliefs.shape
        data, size = beliefs.tobytes(), 8 * k
        states = []
        for i, (n, (customer, counterparty)) in enumerate(zip(n_seen, features, strict=True)):
            belief = data[i * size : (i + 1) * size]
            record = _HEADER.pack(digest, k, n) + belief + (customer or b"")
            states.append(DetectorState(record, counterparty))
        return states
