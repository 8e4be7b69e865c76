"""Live scoring: advance stored states by new transactions, and score them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from turncoat.arrays import Array
from turncoat.data.parsing import TransactionRow
from turncoat.errors import ConfigError, DataError, StateError
from turncoat.features import Features, FeatureState
from turncoat.models.base import HiddenMarkovModel
from turncoat.scoring.calibration import FILTERED, Calibration
from turncoat.scoring.reasons import Explainer, Reason
from turncoat.scoring.scores import Score, make_scores

_HEADER = struct.Struct("<8sIQ")  # digest of the model, number of regimes, transactions seen


class DetectorState(NamedTuple):
    """The stored records behind one transaction, as bytes of a fixed size.

    A service keeps one record for each customer and one for each counterparty.
    """

    customer: bytes | None = None  # None: a new customer
    counterparty: bytes | None = None


@dataclass(frozen=True, eq=False)
class UnpackedState:
    """The content of a `DetectorState`."""

    n_seen: int  # transactions of the customer
    belief: Array | None  # [K]; None for a new customer
    features: FeatureState


@dataclass(frozen=True, eq=False)
class FilterSteps:
    """N transactions that states were advanced by, in order, and everything to score them with."""

    states: Sequence[DetectorState]  # after each transaction
    continuous: Array  # [N, D] features
    categorical: Array  # [N, J]
    prior_beliefs: Array  # [N, K] before each transaction
    has_prior: Array  # [N] False for a customer's first transaction
    beliefs: Array  # [N, K] after each transaction
    n_seen: Sequence[int]  # transactions of the customer, this one included
    ranker_scores: Array | None  # [N]; None without a ranker


@dataclass(frozen=True, eq=False)
class LiveScorer:
    """Scores transactions one by one or in small batches, from states that the caller stores."""

    features: Features
    model: HiddenMarkovModel[Any]
    calibration: Calibration
    label_likelihoods: Array  # [2, K] P(label | state)
    digest: str  # of the model; states made with another one are refused
    explainer: Explainer = field(repr=False)

    def advance(
        self,
        states: Sequence[DetectorState],
        rows: Sequence[TransactionRow],
        label_follows: Sequence[bool],
        previous: Array | None = None,
    ) -> FilterSteps:
        """Advance states by N transactions in order; faster than one at a time.

        `previous` [N, 2] links transactions of the same customer (column 0) or counterparty
        (column 1): the index of the one before, whose state is used instead of `states`, or -1.
        """
        links = np.full((len(rows), 2), -1) if previous is None else previous
        n_seen, prior, has_prior, of_features = self._unpack(states)
        after, continuous, categorical = self.features.step_batch(
            of_features, rows, label_follows, links
        )
        customers = np.ascontiguousarray(links[:, 0])
        beliefs = self.model.step_batch(prior, has_prior, continuous, categorical, customers)
        for i, earlier in enumerate(customers.tolist()):
            n_seen[i] = (n_seen[i] if earlier < 0 else n_seen[earlier]) + 1
        ranker = self.calibration.ranker
        scores = None if ranker is None else ranker.score_rows(rows, continuous, categorical)
        packed = self._pack(beliefs, n_seen, after)
        return FilterSteps(
            packed, continuous, categorical, prior, has_prior, beliefs, n_seen, scores
        )

    def score_steps(
        self, steps: FilterSteps, *, level: float = 0.9, n_reasons: int = 4
    ) -> list[Score]:
        """Score each transaction, with its `n_reasons` strongest reasons and the rest as one."""
        if not 0 < level < 1:
            raise ConfigError(f"level is {level!r}; it must be above 0 and below 1, such as 0.9")
        beliefs = steps.beliefs
        probability, variance = self.calibration.predict(beliefs, FILTERED, steps.ranker_scores)
        reasons: Sequence[tuple[Reason, ...]] = [()] * len(beliefs)
        if n_reasons:
            reasons = self.explainer.explain(
                steps.prior_beliefs, steps.has_prior, steps.continuous, steps.categorical, n_reasons
            )
        fraud_state = self.explainer.fraud_state
        return make_scores(
            probability, variance, beliefs, fraud_state, steps.n_seen, reasons, level
        )

    def condition(self, state: DetectorState, label: int) -> DetectorState:
        """The state once the label of the customer's latest transaction is known."""
        held = self.unpack(state)
        if held.belief is None:
            raise DataError("this customer has no transaction yet that a label could belong to")
        if label not in (0, 1):
            raise DataError(f"the label is {label!r}; it must be 0 or 1")
        belief = held.belief * self.label_likelihoods[int(label)]
        return self._pack((belief / belief.sum())[None], [held.n_seen], [held.features])[0]

    def report_fraud(self, state: DetectorState, time: float) -> DetectorState:
        """The state once the counterparty's transaction at `time` (seconds) is known as fraud."""
        before = FeatureState(None, state.counterparty)
        return DetectorState(state.customer, self.features.report_fraud(before, time).counterparty)

    def unpack(self, state: DetectorState) -> UnpackedState:
        """The content of one state; StateError if it was made by another detector."""
        if not isinstance(state, DetectorState):
            raise StateError(
                "a state is a DetectorState, or None for a new customer; "
                f"found {type(state).__name__}"
            )
        (n_seen,), beliefs, (known,), (features,) = self._unpack([state])
        return UnpackedState(n_seen, beliefs[0] if known else None, features)

    def _unpack(
        self, states: Sequence[DetectorState]
    ) -> tuple[list[int], Array, Array, list[FeatureState]]:
        """Of N states: transactions seen, beliefs [N, K], whether there is one [N], features."""
        mark = (bytes.fromhex(self.digest), self.calibration.n_states)
        start, end = _HEADER.size, _HEADER.size + 8 * mark[1]
        empty = bytes(8 * mark[1])
        n_seen, beliefs, features = [], [], []
        for customer, counterparty in states:
            if customer is None:
                n_seen.append(0)
                beliefs.append(empty)
                features.append(FeatureState(None, counterparty))
                continue
            if len(customer) < end or (header := _HEADER.unpack_from(customer))[:2] != mark:
                raise StateError(
                    "this state was made by another detector. "
                    "Rebuild the states by replaying the history"
                )
            n_seen.append(header[2])
            beliefs.append(customer[start:end])
            features.append(FeatureState(customer[end:] or None, counterparty))
        table = np.frombuffer(bytearray(b"".join(beliefs)), np.float64).reshape(
            len(states), mark[1]
        )
        known = np.array([belief is not empty for belief in beliefs], dtype=np.bool_)
        return n_seen, table, known, features

    def _pack(
        self, beliefs: Array, n_seen: Sequence[int], features: Sequence[FeatureState]
    ) -> list[DetectorState]:
        digest, (_, k) = bytes.fromhex(self.digest), beliefs.shape
        data, size = beliefs.tobytes(), 8 * k
        return [
            DetectorState(
                _HEADER.pack(digest, k, n) + data[i * size : (i + 1) * size] + (customer or b""),
                counterparty,
            )
            for i, (n, (customer, counterparty)) in enumerate(zip(n_seen, features, strict=True))
        ]
