"""The joint-training ablation: figures on hand-made latents, the rule of collapse, the sentences, and whole runs on a small panel."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

from tests.models.neural.panels import WITHOUT_TORCH, mixed_panel, small_encoder
from turncoat import BundleError, ConfigError, DataError
from turncoat.evaluation.ablation import (
    REWEIGHTED,
    SCRATCH,
    TRAINED,
    collapsed_at,
    joint_ablation,
    least_states,
    measured_cycle,
    some_customers,
    verdict,
)
from turncoat.evaluation.results import (
    JointAblation,
    JointCycle,
    JointRun,
    load_ablation,
    save_results,
)
from turncoat.models.neural.encoder import TrainedEncoder
from turncoat.models.neural.frozen import FrozenEncoder

PANEL = mixed_panel()


@pytest.fixture(scope="module")
def encoder() -> TrainedEncoder:
    pytest.importorskip("torch")
    return small_encoder(max_epochs=2).train(PANEL, n_threads=1)


@pytest.fixture(scope="module")
def ablation(encoder: TrainedEncoder) -> JointAblation:
    return joint_ablation(PANEL, encoder, n_states=3, cycles=2, seed=5)


def cycle(number: int, counts: tuple[float, ...], **changes: Any) -> JointCycle:
    shares = np.array(counts) / sum(counts)
    effective = math.exp(-sum(share * math.log(share) for share in shares if share > 0))
    plain = {"separation": 2.0, "relative_separation": 1.5, "spread": 3.0, "enrichment": 4.0}
    return JointCycle(number, counts, effective, **{**plain, **changes})


def hand_made(start: str, *counts: tuple[float, ...]) -> JointRun:
    return JointRun(
        start, tuple(cycle(number, of_states) for number, of_states in enumerate(counts))
    )


def test_figures_of_hand_made_latents() -> None:
    latents = np.array([[0.0, 0.0], [2.0, 0.0], [0.0, 4.0], [2.0, 4.0], [50.0, 50.0]])
    labels = np.array([0, 0, 1, 1, -1], np.int8)
    posteriors = np.array([[1.0, 0.0], [0.5, 0.5], [0.0, 1.0], [0.5, 0.5], [0.0, 1.0]])
    found = measured_cycle(7, latents, posteriors, labels)
    assert found.cycle == 7
    assert found.counts == (3.0, 2.0)
    assert found.effective_states == pytest.approx(
        math.exp(-0.6 * math.log(0.6) - 0.4 * math.log(0.4))
    )
    assert found.separation == pytest.approx(4.0)
    assert found.relative_separation == pytest.approx(
        4.0
    )  # every known row is 1 away from its centroid
    assert found.spread == pytest.approx(math.sqrt(latents.var(axis=0).sum()))  # of all rows
    assert found.enrichment == pytest.approx(
        1.5 / 2 / 0.5
    )  # the second state: 1.5 frauds on 2 known rows, half of which are fraud


def test_latents_in_one_point_are_not_separated() -> None:
    labels = np.array([0, 1, 0], np.int8)
    found = measured_cycle(0, np.ones((3, 2)), np.tile([1.0, 0.0], (3, 1)), labels)
    assert (found.separation, found.relative_separation, found.spread) == (0.0, 0.0, 0.0)
    assert found.effective_states == 1.0
    assert found.enrichment == pytest.approx(1.0)


def test_states_with_hardly_a_row_have_no_enrichment() -> None:
    labels = (np.arange(1000) == 0).astype(np.int8)
    posteriors = np.zeros((1000, 3))
    posteriors[:, 0] = 1.0
    posteriors[:4] = [0.0, 1.0, 0.0]  # 0.4 % of rows, and the only fraud
    latents = np.zeros((1000, 1))
    assert measured_cycle(0, latents, posteriors, labels).enrichment == 0.0
    posteriors[4] = [0.0, 1.0, 0.0]
    assert measured_cycle(0, latents, posteriors, labels).enrichment == pytest.approx(1000 / 5)
    labels[:] = -1
    labels[:2] = 1, 0
    posteriors[:] = [1.0, 0.0, 0.0]
    posteriors[:2] = [0.0, 0.0, 1.0]  # the large state has no known row, the others are small
    assert measured_cycle(0, latents, posteriors, labels).enrichment is None


def test_the_bound_is_a_perfect_split() -> None:
    assert least_states(0.5) == pytest.approx(2.0)
    assert least_states(0.035) == pytest.approx(1.164, abs=1e-3)


def test_when_a_run_has_collapsed() -> None:
    least = least_states(0.035)
    assert collapsed_at(hand_made("a", (60, 40), (99, 1), (100, 0)), least) == 1
    assert collapsed_at(hand_made("a", (99, 1), (100, 0)), least) == 0
    assert (
        collapsed_at(hand_made("a", (60, 40), (99, 1), (60, 40), (99, 1)), least) == 3
    )  # it came back in between
    assert collapsed_at(hand_made("a", (60, 40), (99, 1), (60, 40)), least) is None
    assert (
        collapsed_at(hand_made("a", (60, 40), (95, 5)), least) is None
    )  # few effective states, as befits rare fraud


def test_verdict_on_collapsed_runs() -> None:
    last = cycle(
        2, (1000, 0), separation=0.001, relative_separation=0.2, spread=0.005, enrichment=1.0
    )
    lowest = cycle(
        1, (990, 10), separation=0.0005, relative_separation=0.1, spread=0.006, enrichment=2.0
    )
    run = JointRun(SCRATCH, (cycle(0, (600, 400)), lowest, last))
    rule, told, conclusion = verdict((run,), 0.035)
    assert "fewer than 1.16 effective states" in rule
    assert "3.50% of rows" in rule
    assert told == (
        "From scratch: collapsed in cycle 1 and stayed so to the end. Effective states 1.96 to 1.00 of 2; largest state 60.0% to 100.0% of "
        "rows; highest enrichment of a state 4.0 to 1.0. Centroids of fraud and the rest 2 to 0.001 (lowest 0.0005) apart; over the spread "
        "within the two 1.5 to 0.2 (lowest 0.1); spread of all latents 3 to 0.005 (lowest 0.005)."
    )
    assert conclusion == "Every run collapsed, as the paper reports."


def test_verdict_on_steady_and_mixed_runs() -> None:
    steady, fallen = (
        hand_made(TRAINED, (60, 40), (70, 30)),
        hand_made(REWEIGHTED, (60, 40), (100, 0)),
    )
    _, told, conclusion = verdict((steady,), 0.035)
    assert told.startswith(
        "From the trained encoder: no collapse by cycle 1. Effective states 1.96 to 1.84 of 2"
    )
    assert conclusion == "No run collapsed: the paper's occupancy collapse does not show here."
    assert verdict((steady, fallen), 0.035)[-1].endswith(
        "collapsed from scratch, reweighted. Not collapsed from the trained encoder."
    )


def test_some_customers_are_whole_and_few_enough() -> None:
    drawn = some_customers(PANEL, 100, seed=1)
    rows = {cells.tobytes(): u for u, cells in enumerate(one.continuous for one in PANEL)}
    kept = [rows[one.continuous.tobytes()] for one in drawn]
    assert kept == sorted(set(kept))
    assert 100 - PANEL.lengths.max() < drawn.n_rows <= 100
    assert [one.tobytes() for one in some_customers(PANEL, 100, seed=1).continuous] == [
        one.tobytes() for one in drawn.continuous
    ]
    assert kept != [rows[one.continuous.tobytes()] for one in some_customers(PANEL, 100, seed=2)]
    assert some_customers(PANEL, PANEL.n_rows, seed=1) is PANEL
    with pytest.raises(DataError, match="most_rows is 1"):
        some_customers(PANEL, 1, seed=1)


def test_three_runs_cycle_by_cycle(encoder: TrainedEncoder, ablation: JointAblation) -> None:
    scratch, trained, reweighted = ablation.runs
    assert [run.start for run in ablation.runs] == [SCRATCH, TRAINED, REWEIGHTED]
    for run in ablation.runs:
        assert [one.cycle for one in run.cycles] == [0, 1, 2]
        assert all(sum(one.counts) == pytest.approx(PANEL.n_rows, rel=1e-5) for one in run.cycles)
    assert scratch.cycles[0] == reweighted.cycles[0]
    assert scratch.cycles[1] != reweighted.cycles[1]
    latents = FrozenEncoder.from_trained(encoder).embed(PANEL).continuous
    decoupled = measured_cycle(0, latents, np.ones((PANEL.n_rows, 1)), PANEL.labels)
    for name in ("separation", "relative_separation", "spread"):
        assert getattr(trained.cycles[0], name) == pytest.approx(getattr(decoupled, name), abs=1e-4)
    assert scratch.cycles[0].separation != pytest.approx(decoupled.separation, abs=1e-4)
    assert (ablation.n_states, ablation.latent_dim) == (3, 4)
    assert ablation.measured == "fit part, smoothed; all rows"
    assert ablation.verdict == verdict(ablation.runs, float(PANEL.labels.mean()))


def test_labels_only_measure(encoder: TrainedEncoder, ablation: JointAblation) -> None:
    labels = 1 - PANEL.labels
    labels[::7] = -1
    told: list[tuple[str, int, int]] = []
    other = joint_ablation(
        replace(PANEL, labels=labels),
        encoder,
        n_states=3,
        cycles=2,
        seed=5,
        announce=lambda *news: told.append(news),
    )
    for run, same in zip(ablation.runs, other.runs, strict=True):
        assert [(one.counts, one.spread) for one in run.cycles] == [
            (one.counts, one.spread) for one in same.cycles
        ]
        assert [one.enrichment for one in run.cycles] != [one.enrichment for one in same.cycles]
    assert told == [
        (start, done, 2) for start in (SCRATCH, TRAINED, REWEIGHTED) for done in range(3)
    ]
    assert f"({(labels == 1).sum() / (labels >= 0).sum():.2%} of rows)" in other.verdict[0]


def test_some_of_a_big_panel(encoder: TrainedEncoder) -> None:
    found = joint_ablation(PANEL, encoder, n_states=2, cycles=1, seed=1, most_rows=100)
    n_rows = some_customers(PANEL, 100, seed=1).n_rows
    assert (
        found.measured
        == f"fit part, smoothed; {n_rows} of {PANEL.n_rows} rows, those of customers drawn at random"
    )
    assert all(
        sum(one.counts) == pytest.approx(n_rows, rel=1e-5)
        for run in found.runs
        for one in run.cycles
    )


def test_training_is_as_the_encoders_own(encoder: TrainedEncoder, ablation: JointAblation) -> None:
    faster = replace(encoder, settings=clone(encoder.settings).set_params(learning_rate=0.01))
    other = joint_ablation(PANEL, faster, n_states=3, cycles=1, seed=5)
    assert other.runs[1].cycles[0] == ablation.runs[1].cycles[0]
    assert other.runs[1].cycles[1] != ablation.runs[1].cycles[1]


def test_saved_and_loaded(ablation: JointAblation, tmp_path: Path) -> None:
    path = tmp_path / "joint.json"
    save_results(ablation, path)
    assert load_ablation(path) == ablation
    path.write_text("{}")
    with pytest.raises(BundleError, match="not an ablation this version understands"):
        load_ablation(path)
    with pytest.raises(BundleError, match="cannot be read"):
        load_ablation(tmp_path / "nothing.json")


def test_refusals(encoder: TrainedEncoder) -> None:
    with pytest.raises(ConfigError, match="n_states is 1"):
        joint_ablation(PANEL, encoder, n_states=1)
    with pytest.raises(DataError, match=r"label 0 and with label 1; .* have \[\]"):
        joint_ablation(replace(PANEL, labels=None), encoder, n_states=2)
    with pytest.raises(DataError, match=r"have \[0\]"):
        joint_ablation(
            replace(PANEL, labels=np.where(PANEL.labels == 1, -1, 0).astype(np.int8)),
            encoder,
            n_states=2,
        )


def test_without_torch_an_ablation_is_read_and_refused(tmp_path: Path) -> None:
    path = tmp_path / "joint.json"
    save_results(
        JointAblation(2, 4, "fit part", (hand_made(SCRATCH, (1.0, 0.0)),), ("a sentence",)), path
    )
    script = f"""{WITHOUT_TORCH}
from pathlib import Path
from turncoat.errors import ConfigError
from turncoat.evaluation.ablation import joint_ablation
from turncoat.evaluation.results import load_ablation
print(load_ablation(Path({str(path)!r})).verdict[0])
try:
    joint_ablation(None, None, n_states=2)
except ConfigError as problem:
    print(problem)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith(
        "a sentence\ntraining an encoder needs the extra: pip install turncoat[neural]"
    )
