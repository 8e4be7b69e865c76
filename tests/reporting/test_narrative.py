"""Sentences say what the results hold."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.reporting import sample_results as samples
from turncoat.evaluation.evaluator import COMPARISONS
from turncoat.evaluation.paper.joint_training import (
    REWEIGHTED,
    SCRATCH,
    TRAINED,
    JointCycle,
    JointRun,
    JointTraining,
)
from turncoat.evaluation.paper.manifold import FAILS, UNKNOWN
from turncoat.evaluation.protocols import PROTOCOLS, SplitProtocol
from turncoat.evaluation.results import RegimeTrait, StudyWarning
from turncoat.reporting import narrative
from turncoat.reporting.paper.latent_map import describe_manifold
from turncoat.reporting.paper.training import describe_joint_training


def test_summary_starts_with_rows_and_split() -> None:
    first, second = narrative.summarise(samples.rich())
    assert first.startswith("Evaluated on 268,540 held-out transactions, 2,248 of them fraud.")
    assert "Customers are split at random (seed 42)" in first
    assert second.startswith("All models are evaluated on the same rows.")
    assert "amount against the customer's usual (amount_to_mean) and pace" in second


def test_summary_of_the_paper_s_protocol_names_the_different_rows() -> None:
    results = replace(samples.rich(), protocol=SplitProtocol("paper"))
    assert "5 transactions or more" in narrative.summarise(results)[1]


@pytest.mark.parametrize("name", PROTOCOLS)
def test_every_protocol_is_described(name: str) -> None:
    assert narrative.describe_split(SplitProtocol(name)).endswith(".")
    kept = narrative.describe_split(SplitProtocol("handbook", drop_compromised=False))
    assert "All cards are kept" in kept


def test_every_topic_has_a_headline() -> None:
    assert set(narrative.TOPICS) == {topic for *_, topic in COMPARISONS if topic}


def test_a_comparison_says_whether_its_interval_excludes_zero() -> None:
    one = samples.rich().comparisons[0]
    text = narrative.describe_comparison(one)
    topic, gap = narrative.TOPICS[one.topic], f"{one.first} is 0.0037 above XGBoost"
    assert text.startswith(f"{topic}: {gap} (Average precision, higher is better; 90 % interval")
    assert text.endswith("includes zero).")
    apart = replace(one, customer_interval=(0.001, 0.004))
    assert narrative.describe_comparison(apart).endswith("excludes zero).")
    assert "is 0.0300 below XGBoost" in narrative.describe_comparison(
        replace(one, difference=-0.03)
    )
    assert "is level with XGBoost" in narrative.describe_comparison(replace(one, difference=0.0))


@pytest.mark.parametrize(
    ("code", "values", "words"),
    [
        ("few_frauds", {"n_frauds": 12.0}, "few frauds, 12 in the x part in one fold: all"),
        ("saturated", {"saturation": 0.98}, "X: the model is almost certain of one regime in 98"),
        ("no_sequence", {"temporal_share": 0.001}, "adds almost nothing (temporal share 0.1\xa0%)"),
        ("no_eligible_order", {"n_states": 4.0}, "X: no number of regimes gives one useful fraud"),
        ("unstable_order", {"n_states": 5.0, "share": 0.2}, "regimes, 5, is uncertain: 20\xa0% of"),
        ("different_rows", {}, "does not compare on the same rows"),
        ("miscalibrated", {"ece": 0.5, "fraud_rate": 0.25}, "1 variant in the appendix. In bra"),
    ],
)
def test_every_warning_is_worded(code: str, values: dict[str, float], words: str) -> None:
    results = replace(samples.rich(), warnings=(StudyWarning(code, "x", values),))
    (text,) = narrative.list_warnings(results)
    assert words in text


def test_miscalibrated_candidates_share_a_sentence() -> None:
    texts = narrative.list_warnings(samples.rich())
    assert len(texts) == len(samples.rich().warnings) - 1
    assert "as probabilities: XGBoost (1.2\xa0%) and 1 variant in the appendix." in texts[1]
    assert "where 0.84\xa0% of transactions are fraud" in texts[1]
    alone = narrative.list_warnings(replace(samples.rich(), summary=None))
    assert "as probabilities: XGBoost (1.2\xa0%) and LSTM (4.6\xa0%)." in alone[1]


def test_parts_with_few_frauds_share_a_sentence() -> None:
    few = [StudyWarning("few_frauds", part, {"n_frauds": 13.0}) for part in ("calibration", "test")]
    results = replace(samples.rich(), warnings=tuple(few), n_folds=1)
    assert narrative.list_warnings(results) == (
        "There are few frauds, 13 in the calibration part and 13 in the test part: all numbers are "
        "rough.",
    )


def test_errata_hold_the_numbers_of_each_tier() -> None:
    results = samples.rich()
    base = next(one for one in results.candidates if one.name.endswith("raw, smoothed"))
    named = "Baum-Welch, raw, filtered", "Baum-Welch, in-sample rates"
    more = tuple(replace(base, name=name, supervision="none") for name in named)
    texts = list(narrative.list_errata(replace(results, candidates=(*results.candidates, *more))))
    assert [text.split(":")[0] for text in texts] == [f"E{n}, Baum-Welch" for n in (8, 9, 7)]
    assert f"{results.regimes[0].misread_share:.2%}" in texts[2]
    assert list(narrative.list_errata(results)) == []


def test_cautions_about_detectors_that_one_would_not_deploy_stand_apart() -> None:
    results = samples.rich()
    assert results.summary is not None
    summary = replace(results.summary, detector="champion")
    of = {subject: StudyWarning("saturated", subject, {"saturation": 0.97}) for subject in "xy"}
    own = StudyWarning("no_sequence", "champion", {"temporal_share": 0.001})
    few = StudyWarning("few_frauds", "test", {"n_frauds": 9.0})
    warnings = (of["x"], own, few, of["y"])
    main, others = narrative.divide_warnings(replace(results, summary=summary, warnings=warnings))
    assert [text.split(":")[0] for text in main[:1]] == ["Champion"]
    assert main[1].startswith("There are few frauds")
    assert [text.split(":")[0] for text in others] == ["X", "Y"]
    undecided = replace(results, summary=None, warnings=warnings)
    assert narrative.divide_warnings(undecided) == (narrative.list_warnings(undecided), ())


@pytest.mark.parametrize(
    ("trait", "text"),
    [
        (RegimeTrait("pace", 2.14), "pace: far above average (+2.1 SD)"),
        (RegimeTrait("pace", -1.2), "pace: below average (-1.2 SD)"),
        (RegimeTrait("pace", 0.4), "pace: somewhat above average (+0.4 SD)"),
        (RegimeTrait("device", 0.61, "'phone'", 0.2), "device is 'phone': 61% vs. 20% overall"),
        (
            RegimeTrait("new_device", 0.8, "yes", 0.05),
            "device is new for the customer (new_device): yes in 80% vs. 5% overall",
        ),
        (
            RegimeTrait("counterparty_count_day", 1.2),
            "transactions in the last day at the shop (counterparty_count_day): above average "
            "(+1.2 SD)",
        ),
    ],
)
def test_traits_are_worded(trait: RegimeTrait, text: str) -> None:
    assert narrative.describe_trait(trait, ("shop",)) == text


def make_cycle(number: int, counts: tuple[float, ...], states: float, **changes: Any) -> JointCycle:
    values = {"separation": 2.0, "relative_separation": 1.5, "spread": 3.0, "enrichment": 4.0}
    return JointCycle(number, counts, states, **{**values, **changes})


def describe_runs(*runs: JointRun) -> tuple[str, ...]:
    return describe_joint_training(JointTraining(2, 4, 1000, 1000, 0.035, 1.164, runs))


def test_a_collapsed_run_is_described() -> None:
    small = {"separation": 0.0005, "relative_separation": 0.1, "spread": 0.006, "enrichment": 2.0}
    last = {"separation": 0.001, "relative_separation": 0.2, "spread": 0.005, "enrichment": 1.0}
    cycles = (
        make_cycle(0, (600, 400), 1.96),
        make_cycle(1, (990, 10), 1.06, **small),
        make_cycle(2, (1000, 0), 1.0, **last),
    )
    rule, text, conclusion = describe_runs(JointRun(SCRATCH, cycles, 1))
    assert "fewer than 1.16 effective states" in rule
    assert "3.50% of rows" in rule
    assert text == (
        "From scratch: collapsed in cycle 1 and stayed collapsed. Effective states 1.96 to 1.00 of "
        "2; largest state 60.0% to 100.0% of rows; highest enrichment of a state 4.0 to 1.0. "
        "Distance between the centroids of fraud and the rest 2 to 0.001 (lowest 0.0005); relative "
        "to the spread within both 1.5 to 0.2 (lowest 0.1); spread of all latents 3 to 0.005 "
        "(lowest 0.005)."
    )
    assert conclusion == "Every run collapsed, as the paper reports."


def test_steady_and_mixed_runs_are_described() -> None:
    cycles = (make_cycle(0, (60, 40), 1.96), make_cycle(1, (70, 30), 1.84))
    steady, fallen = JointRun(TRAINED, cycles), JointRun(REWEIGHTED, cycles, 1)
    _, text, conclusion = describe_runs(steady)
    assert text.startswith(
        "From the trained encoder: no collapse by cycle 1. Effective states 1.96 to 1.84 of 2"
    )
    assert conclusion == "No run collapsed: the paper's occupancy collapse does not show here."
    assert describe_runs(steady, fallen)[-1].endswith(
        "collapsed from scratch, reweighted. Not collapsed from the trained encoder."
    )


def test_the_manifold_test_is_described() -> None:
    latents = samples.rich().latent_maps[0]
    first, piece, segments, end, fading, head = describe_manifold(latents)
    assert first.startswith("Tested along the first principal component, which places 200 of 200")
    assert "(0.12 along the first diffusion component)" in first
    assert piece.startswith("One continuous piece: holds.")
    assert "98.7% of rows and 91.2% of frauds" in piece
    assert segments.startswith("Regimes are ordered segments: holds in part.")
    assert "shuffled regimes reach 0.03" in segments
    assert "67% of regimes lie next to" in segments
    assert end.startswith("Fraud lies at one end: holds.")
    assert "number 4 of 4" in end
    assert fading.startswith("Fraud falls off gradually from there: holds in part.")
    assert "the axis is that score" in head


def change_map(test: dict[str, Any], axis: dict[str, Any]) -> tuple[str, ...]:
    latents = samples.rich().latent_maps[0]
    axes = (replace(latents.axes[0], **axis), *latents.axes[1:])
    assert latents.manifold is not None
    return describe_manifold(
        replace(latents, axes=axes, manifold=replace(latents.manifold, **test))
    )


def test_what_cannot_be_tested_is_said() -> None:
    none = {"segments_chance": None, "fading_chance": None, "fraud_in_piece": None}
    grades = {"segments": UNKNOWN, "fraud_at_end": UNKNOWN, "fading": UNKNOWN}
    missing = {"monotonicity": None, "gradualness": None, "head_correlation": None}
    texts = change_map({**none, **grades}, missing)
    assert len(texts) == 5
    assert "of frauds" not in texts[1]
    assert texts[2] == f"Regimes are ordered segments: {UNKNOWN}, because all rows are in one."
    assert texts[3].endswith("because all rows have the same label.")
    assert texts[4].endswith(f"{UNKNOWN}, with 9 frauds in 200 rows.")
    latents = replace(samples.rich().latent_maps[0], manifold=None, axes=())
    (text,) = describe_manifold(latents)
    assert UNKNOWN in text


def test_a_regime_without_rows_and_a_weak_correlation_are_said() -> None:
    texts = change_map(
        {"fading": FAILS, "fading_chance": None}, {"regime_order": (0, 1), "head_correlation": 0.5}
    )
    assert texts[3].endswith("the fraud regime has no row here.")
    assert texts[4].endswith("no better than with shuffled labels.")
    assert texts[5].endswith("with the score of the encoder's own head.")
