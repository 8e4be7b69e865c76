"""Chains that were fitted without a piece really lack it, and nothing else."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from tests.scoring.chains import BUSY, chains_detector, payments, replay_payments
from tests.scoring.detectors import time_split
from turncoat import Detector, load
from turncoat.features import Features
from turncoat.features.chains import Chains, IntruderChain
from turncoat.features.split_panels import select_visible
from turncoat.numerics import intruder
from turncoat.numerics.label_times import NEVER, LabelTimes
from turncoat.scoring.chain_fitting import FittedCauses, fit_causes
from turncoat.scoring.chain_pieces import ALL_PIECES, PIECE_NAMES, has_piece
from turncoat.scoring.intruder_fitting import CustomerRows, fit_intruder, fit_profile

DAY = 86400.0
WAITS = LabelTimes(7 * DAY, 0.0)


@cache
def learn(left_out: str = "") -> FittedCauses:
    transactions = payments(12_000, 1, 90, BUSY).transactions
    pieces = ALL_PIECES.leave_out(left_out) if left_out else ALL_PIECES
    return fit_causes(Features(min_count=4).fit(transactions), transactions, 0, pieces)


def intruder_of(left_out: str = "") -> IntruderChain:
    found = learn(left_out).chains.intruder
    assert found is not None
    found.check()
    return found


def replay(chain: IntruderChain, times: np.ndarray, amounts: np.ndarray) -> dict[str, np.ndarray]:
    """Outputs of one customer's transactions."""
    outputs, columns = np.zeros((len(intruder.OUTPUTS), len(times))), amounts[:, None]
    rows = np.array([0, len(times)]), times, columns, np.full(len(times), NEVER)
    intruder.replay_intruder(*rows, chain.tables, WAITS, outputs, np.empty(columns.shape))
    return dict(zip(intruder.OUTPUTS, outputs, strict=True))


def draw_customer(n_rows: int = 60) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(4)
    times = DAY * np.cumsum(rng.exponential(1.0, n_rows))
    amounts = rng.lognormal(3.0, 0.4, n_rows)
    amounts[n_rows // 2 :: 3] *= 6.0
    return times, amounts


def test_without_time_gaps_only_the_order_matters() -> None:
    times, amounts = draw_customer()
    stretched = DAY * np.cumsum(np.linspace(0.01, 20.0, len(times)))
    fixed, real = intruder_of("time_gaps"), intruder_of()
    for name, expected in replay(fixed, times, amounts).items():
        np.testing.assert_array_equal(replay(fixed, stretched, amounts)[name], expected)
    presence = replay(real, times, amounts)["presence"]
    assert np.abs(replay(real, stretched, amounts)["presence"] - presence).max() > 0.05
    assert real.fixed_gap_days == 0


def test_the_fixed_gap_is_the_mean_gap_of_the_fit_rows() -> None:
    transactions = payments(12_000, 1, 90, BUSY).transactions
    gaps = [
        np.diff(transactions.times[start:stop])
        for start, stop in zip(transactions.offsets[:-1], transactions.offsets[1:], strict=True)
    ]
    mean_days = np.concatenate(gaps).mean() / DAY
    assert intruder_of("time_gaps").fixed_gap_days == pytest.approx(mean_days)


def test_where_all_gaps_are_equal_time_gaps_are_worth_nothing() -> None:
    """Both chains see the same times, so that EM ends at the same parameters."""
    rng, n, length = np.random.default_rng(0), 40, 50
    codes = np.repeat(np.arange(n), length)
    labels = (rng.random(n * length) < 0.05).astype(np.int64)
    amounts = rng.lognormal(3.0 + 1.5 * labels, 0.5)
    times = 0.5 * DAY * np.tile(np.arange(length), n)
    about = np.arange(n * length), length * np.arange(n + 1), codes, times, labels
    rows = CustomerRows(*about, ("amount",), amounts[:, None])
    profile, explained = fit_profile(rows), np.zeros(n * length)
    real = fit_intruder(rows, profile, explained, WAITS)
    fixed = fit_intruder(rows, profile, explained, WAITS, ALL_PIECES.leave_out("time_gaps"))
    assert fixed.fixed_gap_days == pytest.approx(0.5)
    for name in ("onsets_per_day", "ends_per_day", "share", "log_ratios"):
        np.testing.assert_allclose(getattr(fixed, name), getattr(real, name), rtol=1e-6)


def test_without_an_own_profile_no_customer_changes_it() -> None:
    """The surprise is the distance from all customers' amounts, in standard deviations."""
    times, amounts = draw_customer(400)
    chain = intruder_of("own_profile")
    transactions = payments(12_000, 1, 90, BUSY).transactions
    genuine = transactions.column("TX_AMOUNT")[np.asarray(transactions.labels) != 1]

    def scale(cells: np.ndarray) -> np.ndarray:
        (unit,), (which,) = chain.units, chain.scales
        names = {intruder.ARSINH: np.arcsinh(cells / unit), intruder.ROOT: np.sqrt(cells)}
        return names.get(int(which), cells)

    expected = (scale(amounts) - scale(genuine).mean()) / scale(genuine).std()
    np.testing.assert_allclose(replay(chain, times, amounts)["surprise"], expected, atol=1e-4)
    own = replay(intruder_of(), times, np.full(400, 60.0))["surprise"]
    assert abs(own[0] - own[-1]) > 0.5  # an own profile gets used to it


def test_without_a_share_every_transaction_of_an_intrusion_is_the_intruder_s() -> None:
    """So P(intruder's) is P(present) after the transaction."""
    times, amounts = draw_customer()
    chain = intruder_of("row_share")
    assert chain.share > 1 - 1e-6
    assert 0.05 < intruder_of().share < 0.9
    for n in range(1, len(times)):  # the next transaction comes at once
        found = replay(chain, np.append(times[:n], times[n - 1]), amounts[: n + 1])
        assert found["intruder"][-2] == pytest.approx(found["presence"][-1], abs=1e-6)


def test_without_the_counterparty_there_is_no_chain_of_it() -> None:
    reduced = learn("counterparty").chains
    assert reduced.compromise == (None,)
    assert reduced.intruder is not None
    assert learn().chains.compromise != (None,)


def test_without_phases_a_compromise_has_one() -> None:
    (full,), (reduced,) = learn().chains.compromise, learn("phases").chains.compromise
    assert full is not None
    assert reduced is not None
    assert full.n_phases > 1
    assert reduced.n_phases == 1


@pytest.mark.parametrize("left_out", PIECE_NAMES)
def test_the_other_pieces_are_learnt_as_usual(left_out: str) -> None:
    found = learn(left_out).chains
    own, (other,) = intruder_of(left_out), found.compromise
    assert (own.fixed_gap_days > 0) == (left_out == "time_gaps")
    assert (own.priors[0, 1] > 1e6) == (left_out == "own_profile")
    assert (own.share > 0.99) == (left_out == "row_share")
    assert (other is None) == (left_out == "counterparty")
    if other is not None:
        assert (other.n_phases == 1) == (left_out == "phases")


def test_chains_have_the_pieces_of_their_sides() -> None:
    full = learn().chains
    assert all(has_piece(full, name) for name in PIECE_NAMES)
    own, other = Chains(full.intruder), Chains(None, full.compromise)
    assert [has_piece(own, name) for name in PIECE_NAMES] == [True, True, True, False, False]
    assert [has_piece(other, name) for name in PIECE_NAMES] == [False, False, False, True, True]
    assert not has_piece(learn("phases").chains, "phases")


@cache
def reduce_detector(left_out: str) -> Detector:
    transactions = payments().transactions
    made, split = chains_detector(), time_split(transactions)
    visible, _ = select_visible(transactions, split, "fit")
    causes = fit_causes(made.features_, visible, 0, ALL_PIECES.leave_out(left_out))
    return made.replace_causes(causes, transactions, split)


def test_causes_that_were_learnt_again_give_the_same_detector() -> None:
    made, transactions = chains_detector(), payments().transactions
    split = time_split(transactions)
    seed = made.model_.random_state
    causes = fit_causes(made.features_, select_visible(transactions, split, "fit")[0], seed)
    again = made.replace_causes(causes, transactions, split)
    assert again.kind == "chains"
    expected = made.score(transactions).probability
    np.testing.assert_array_equal(again.score(transactions).probability, expected)


@pytest.mark.parametrize("left_out", ["time_gaps", "own_profile"])
def test_live_scores_of_reduced_chains_equal_those_of_a_file(left_out: str) -> None:
    made, data = reduce_detector(left_out), payments()
    scores, live = made.score(data.transactions).probability, replay_payments(made, data, 800)
    found = np.array([score.probability for score in live.values()])
    np.testing.assert_allclose(found, scores[np.array(list(live))], atol=1e-6)


def test_reduced_chains_are_saved(tmp_path: Path) -> None:
    made, transactions = reduce_detector("time_gaps"), payments().transactions
    made.save(tmp_path / "detector")
    again = load(tmp_path / "detector")
    assert again.digest_ == made.digest_
    assert again.digest_ != chains_detector().digest_
    np.testing.assert_array_equal(
        again.score(transactions).probability, made.score(transactions).probability
    )
