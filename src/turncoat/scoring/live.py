"""Live scoring: advance stored states by new transactions, and score them."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from turncoat.arrays import Array
from turncoat.data.parsing import TransactionRow
from turncoat.errors import ConfigError, DataError, StateError
from turncoat.features import UNKNOWN, Features, FeatureState
from turncoat.features.chains import COUNTERPARTY_OUTPUTS, select_causes
from turncoat.models.base import HiddenMarkovModel
from turncoat.numerics.episodes import LABEL, LAST_TIME, STATE_SIZE, advance_episodes
from turncoat.numerics.intruder import OUTPUTS
from turncoat.scoring.calibration import FILTERED, Calibration
from turncoat.scoring.cause_texts import (
    TransactionDescriber,
    Unusual,
    describe_compromise,
    describe_intruder,
)
from turncoat.scoring.causes import CauseScore
from turncoat.scoring.descriptions import AMOUNT, HISTORY, DescribedRow, FeatureDescriber, Values
from turncoat.scoring.formatting import NO_CALENDAR, Clock, shorten
from turncoat.scoring.path import BeliefPath, compute_path_columns
from turncoat.scoring.rankers import CausesRanker, CorrectedCausesRanker, RankerRows, XGBoostRanker
from turncoat.scoring.reasons import Reasons, list_reasons
from turncoat.scoring.scores import Score, compute_beta_interval, compute_entropy

_CALENDAR_FROM_S = 20 * 365.25 * 86400.0  # later numeric times count seconds since 1970
_KNOWN = "known_frauds", "known_days", "recent_rows", "unusual_rows"
_CUSTOMER_FACTS = [OUTPUTS.index(name) for name in ("times_usual", "presence", *_KNOWN, "oddest")]
_COUNTERPARTY_FACTS = [
    COUNTERPARTY_OUTPUTS.index(name) for name in ("compromised", "run_frauds", "run_days")
]
_HEADER = struct.Struct("<8sIQ")  # digest of the model, number of regimes, transactions seen


class DetectorState(NamedTuple):
    """The records that a service stores of a customer and of counterparties, of fixed sizes."""

    customer: bytes | None = None  # None: a new customer
    counterparties: tuple[bytes | None, ...] = ()  # in the schema's order; () if all are new


class UnpackedState(NamedTuple):
    """The content of a `DetectorState`."""

    n_seen: int  # transactions of the customer
    belief: Array | None  # [K]; None for a new customer
    episode: Array  # [4] of the chain of episodes; empty without one
    own_time: Array  # [1] of the latest transaction; empty unless `LiveScorer.stores_times`
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
    rows: Sequence[TransactionRow] = ()  # [N] as given; only reasons need them
    gaps_s: Array | None = None  # [N] as in `BeliefPath`
    ages_s: Array | None = None  # [N] as in `CalibrationRows`; only drift needs them

    @property
    def path(self) -> BeliefPath:
        """Beliefs before and after the transactions."""
        return BeliefPath(self.prior_beliefs, self.has_prior, self.beliefs, self.gaps_s)

    def take(self, rows: Array) -> FilterSteps:
        """What reasons need of the transactions at these places."""
        cells = self.continuous[rows], self.categorical[rows]
        beliefs = self.prior_beliefs[rows], self.has_prior[rows], self.beliefs[rows]
        scores = None if self.ranker_scores is None else self.ranker_scores[rows]
        gaps_s = None if self.gaps_s is None else self.gaps_s[rows]
        causes = None if self.causes is None else self.causes[rows]
        given = [self.rows[row] for row in rows]
        return FilterSteps([], *cells, *beliefs, [], scores, causes, given, gaps_s)


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
        `previous` [N, 1 + C] links transactions of the same customer (column 0) or of the same
        counterparty (columns 1 to C, in the schema's order): the index of the one before, whose
        state is used instead of `states`, or -1.
        """
        n_counterparties = len(self.features.plan.counterparties)
        links = np.full((len(rows), 1 + n_counterparties), -1) if previous is None else previous
        n_seen, stored, is_known, episodes, own_times, records = self._unpack(states)
        stepped_features = self.features.step_batch(records, rows, labels, links)
        after, cells, codes, causes, last_times, first_times = stepped_features
        customers, ranker = np.ascontiguousarray(links[:, 0]), self.calibration.ranker
        times, gaps_s = np.array([row.time for row in rows]), None
        if self.model.transitions == "continuous":
            last_times = own_times[:, 0] if last_times is None else last_times
            gaps_s = _advance_times(last_times, is_known, customers, times)
        stepped = self.model.step_batch(stored, is_known, cells, codes, customers, gaps_s)
        for i, earlier in enumerate(customers.tolist()):
            n_seen[i] = (n_seen[i] if earlier < 0 else n_seen[earlier]) + 1
        steps = FilterSteps([], cells, codes, *stepped, n_seen, None, causes, rows, gaps_s)
        scores = None if ranker is None else ranker.score(self._make_ranker_rows(steps, rows))
        chain = self.calibration.episodes
        if scores is not None and chain is not None:
            known = episodes, is_known, customers, times
            scores = advance_episodes(*known, scores, chain.rates)
        packed = self._pack(stepped[2], n_seen, episodes, own_times, after)
        ages_s = np.zeros(len(rows)) if first_times is None else times - first_times
        return steps._replace(states=packed, ranker_scores=scores, ages_s=ages_s)

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
        held.episode[LABEL:LAST_TIME] = label  # empty without a chain of episodes
        return self._pack_one(held._replace(belief=belief / belief.sum()))

    def report_label(
        self,
        counterparty: str,
        record: bytes | None,
        time: float,
        label: int,
        earlier: int = UNKNOWN,
        explained: float = 0.0,
    ) -> bytes:
        """The record of a counterparty once the label of its transaction is known.

        The arguments are those of `Features.report_label`.
        """
        about = time, label, earlier, explained
        return self.features.report_label(counterparty, record, *about)

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
        return self._pack_one(held._replace(features=features))

    def unpack(self, state: DetectorState) -> UnpackedState:
        """The content of one state; StateError if it was made by another detector."""
        if not isinstance(state, DetectorState):
            kinds = "a DetectorState, or None for a new customer"
            raise StateError(f"a state is {kinds}; found {type(state).__name__}")
        (n_seen,), beliefs, (known,), (episode,), (time,), (features,) = self._unpack([state])
        return UnpackedState(n_seen, beliefs[0] if known else None, episode, time, features)

    @property
    def stores_times(self) -> bool:
        """Whether a state has a time of its own: one is needed, and the features keep none."""
        return self.model.transitions == "continuous" and not self.features.plan.engineered

    @property
    def has_calendar_times(self) -> bool:
        """Whether times count from 1970 (UTC), and not from a start that only the user knows."""
        last = self.calibration.time_range[1]
        return self.features.plan.schema.time_format is not None or last >= _CALENDAR_FROM_S

    @cached_property
    def clock(self) -> Clock:
        """How times are shown."""
        return Clock.of(self.features.plan.schema) if self.has_calendar_times else NO_CALENDAR

    @property
    def values(self) -> Values:
        """The values of a transaction's columns."""
        return self._describers[0].values

    @cached_property
    def _describers(self) -> tuple[FeatureDescriber, FeatureDescriber]:
        """Of the regimes' reasons, and of the trees'."""
        ranker = self.calibration.ranker
        texts = HISTORY, HISTORY if ranker is None else ranker.history_text
        regimes, trees = (FeatureDescriber(self.features.plan, text, self.clock) for text in texts)
        return regimes, trees

    def _explain(
        self, steps: FilterSteps, n_reasons: int | None, opens_path: bool
    ) -> tuple[list[Reasons], list[Reasons]]:
        """Reasons of each transaction and, if trees gave them, of the history that they saw."""
        cells, codes, ranker = steps.continuous, steps.categorical, self.calibration.ranker
        rows = list(map(DescribedRow, cells, codes, steps.rows))
        has_trees = isinstance(ranker, XGBoostRanker)
        of_regimes: list[Reasons] = [()] * len(rows)
        if isinstance(ranker, CausesRanker):
            return self._explain_causes(ranker.source, steps, rows, n_reasons), of_regimes
        if isinstance(ranker, CorrectedCausesRanker):
            if opens_path:
                of_regimes = self._explain_causes(ranker.cause_score, steps, rows, n_reasons)
        elif (opens_path or not has_trees) and self.model.n_states > 1:
            fraud_state = self.calibration.regimes[FILTERED].fraud_state
            predicted = steps.path.predict(self.model)
            terms = self.model.explain_log_odds(fraud_state, predicted, cells, codes)
            of_regimes = list_reasons(terms, self._describers[0], rows, n_reasons)
        if not isinstance(ranker, XGBoostRanker):
            return of_regimes, [()] * len(rows)
        terms = ranker.explain(self._make_ranker_rows(steps))
        if self.calibration.episodes is not None:
            terms = self.calibration.episodes.explain(terms, np.asarray(steps.ranker_scores))
        return list_reasons(terms, self._describers[1], rows, n_reasons), of_regimes

    def _explain_causes(
        self,
        score: CauseScore,
        steps: FilterSteps,
        rows: Sequence[DescribedRow],
        n_reasons: int | None,
    ) -> list[Reasons]:
        cells, causes = (steps.continuous, steps.categorical), np.asarray(steps.causes)
        plan, describer = self.features.plan, self._describers[0]
        own = TransactionDescriber(describer, score.scorecard).describe(rows)
        profile, values = plan.all_chains.profile_columns, describer.values
        texts = []
        for facts, row, is_first, transaction in zip(
            causes, rows, ~steps.has_prior, own, strict=True
        ):
            times_usual, *about, oddest = facts[_CUSTOMER_FACTS].tolist()
            column = plan.schema.amount if math.isnan(oddest) else profile[int(oddest)]
            name = AMOUNT if column in (None, plan.schema.amount) else str(column)
            shown, value, currency = "", math.nan, None
            if column is not None:
                shown, value = values.format(row.given, column), values.number(row.given, column)
                currency = values.original_currency(row.given, column)
            unusual = Unusual(name, shown, value, times_usual, bool(is_first), currency)
            others, clock = [], self.clock.localize(row.given.utc_offset)
            named = zip(plan.counterparties, row.given.counterparties, strict=True)
            for place, (party, value_) in enumerate(named):
                seen = facts[select_causes(place)][_COUNTERPARTY_FACTS].tolist()
                who = party if value_ is None else f"{party} {shorten(value_)}"
                others.append(describe_compromise(who, clock, row.given.time, *seen))
            texts.append((describe_intruder(unusual, *about), *others, transaction))
        return score.explain(plan.counterparties, *cells, causes, texts, n_reasons)

    def _make_ranker_rows(
        self, steps: FilterSteps, rows: Sequence[TransactionRow] = ()
    ) -> RankerRows:
        """The transactions for the ranker, with the path [N, P] if it scores with that."""
        cells, path, ranker = (steps.continuous, steps.categorical), None, self.calibration.ranker
        if ranker is not None and ranker.needs_path:
            path = compute_path_columns(self.model, steps.path, *cells)
        return RankerRows(rows, *cells, path, steps.causes)

    def _unpack(
        self, states: Sequence[DetectorState]
    ) -> tuple[list[int], Array, Array, Array, Array, list[FeatureState]]:
        """Of N states: transactions seen, beliefs [N, K], whether there is one, then the rest.

        The rest is episodes [N, 4] (or [N, 0] without a chain of them), own times [N, 1] (or
        [N, 0], see `stores_times`) and features.
        """
        n_states = self.calibration.n_states
        end_episode = n_states + (0 if self.calibration.episodes is None else STATE_SIZE)
        n_numbers = end_episode + int(self.stores_times)
        mark, empty = (bytes.fromhex(self.digest), n_states), bytes(8 * n_numbers)
        start, end = _HEADER.size, _HEADER.size + len(empty)
        n_seen, beliefs, features = [], [], []
        for customer, counterparties in states:
            if customer is None:
                n_seen.append(0)
                beliefs.append(empty)
                features.append(FeatureState(None, counterparties))
                continue
            if len(customer) < end or (header := _HEADER.unpack_from(customer))[:2] != mark:
                remedy = "Rebuild the states by replaying the history"
                raise StateError(f"this state was made by another detector. {remedy}")
            n_seen.append(header[2])
            beliefs.append(customer[start:end])
            features.append(FeatureState(customer[end:] or None, counterparties))
        known = np.array([belief is not empty for belief in beliefs], dtype=np.bool_)
        table = np.frombuffer(b"".join(beliefs), np.float64).reshape(len(states), n_numbers)
        rest = table[:, n_states:end_episode].copy(), table[:, end_episode:].copy(), features
        return n_seen, table[:, :n_states].copy(), known, *rest

    def _pack_one(self, held: UnpackedState) -> DetectorState:
        assert held.belief is not None
        parts = held.belief[None], [held.n_seen], held.episode[None], held.own_time[None]
        return self._pack(*parts, [held.features])[0]

    def _pack(
        self,
        beliefs: Array,
        n_seen: Sequence[int],
        episodes: Array,
        own_times: Array,
        features: Sequence[FeatureState],
    ) -> list[DetectorState]:
        digest, k = bytes.fromhex(self.digest), beliefs.shape[1]
        numbers = np.hstack([beliefs, episodes, own_times])
        data, size = numbers.tobytes(), 8 * numbers.shape[1]
        states = []
        for i, (n, (customer, counterparties)) in enumerate(zip(n_seen, features, strict=True)):
            belief = data[i * size : (i + 1) * size]
            record = _HEADER.pack(digest, k, n) + belief + (customer or b"")
            states.append(DetectorState(record, counterparties))
        return states


def _advance_times(last_times: Array, is_known: Array, previous: Array, times: Array) -> Array:
    """Seconds since the customer's previous transaction [N], 0 for the first one.

    `previous` [N] is the customer's earlier transaction among them, whose time is taken instead of
    `last_times` [N]; these are advanced in place. A late transaction counts as now.
    """
    gaps_s = np.zeros(len(times))
    for i, earlier in enumerate(previous.tolist()):
        if earlier >= 0:
            last_times[i] = last_times[earlier]
        elif not is_known[i]:
            last_times[i] = times[i]
        gaps_s[i] = max(times[i] - last_times[i], 0.0)
        last_times[i] = max(times[i], last_times[i])
    return gaps_s
