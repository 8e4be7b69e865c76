"""Joint training: measures of hand-made latents, the rule of collapse, runs on a small panel."""

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
from turncoat.evaluation.paper.joint_training import (
    REWEIGHTED,
    SCRATCH,
    TRAINED,
    JointCycle,
    JointTraining,
    effective_states_of_split,
    find_collapse,
    measure_cycle,
    sample_sequences,
    train_jointly_from_all_starts,
)
from turncoat.evaluation.results import load_joint_training, save_results
from turncoat.models.neural.encoder import TrainedEncoder
from turncoat.models.neural.frozen import FrozenEncoder

PANEL = mixed_panel()


@pytest.fixture(scope="module")
def encoder() -> TrainedEncoder:
    pytest.importorskip("torch")
    return small_encoder(max_epochs=2).train(PANEL, n_threads=1)


@pytest.fixture(scope="module")
def joint(encoder: TrainedEncoder) -> JointTraining:
    return train_jointly_from_all_starts(PANEL, encoder, n_states=3, cycles=2, seed=5)


def cycle(number: int, counts: tuple[float, ...], **changes: Any) -> JointCycle:
    shares = np.array(counts) / sum(counts)
    effective = math.exp(-sum(share * math.log(share) for share in shares if share > 0))
    plain = {"separation": 2.0, "relative_separation": 1.5, "spread": 3.0, "enrichment": 4.0}
    return JointCycle(number, counts, effective, **{**plain, **changes})


def make_cycles(*counts: tuple[float, ...]) -> list[JointCycle]:
    return [cycle(number, of_states) for number, of_states in enumerate(counts)]


def test_figures_of_hand_made_latents() -> None:
    latents = np.array([[0.0, 0.0], [2.0, 0.0], [0.0, 4.0], [2.0, 4.0], [50.0, 50.0]])
    labels = np.array([0, 0, 1, 1, -1], np.int8)
    posteriors = np.array([[1.0, 0.0], [0.5, 0.5], [0.0, 1.0], [0.5, 0.5], [0.0, 1.0]])
    found = measure_cycle(7, latents, posteriors, labels)
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
    found = measure_cycle(0, np.ones((3, 2)), np.tile([1.0, 0.0], (3, 1)), labels)
    assert (found.separation, found.relative_separation, found.spread) == (0.0, 0.0, 0.0)
    assert found.effective_states == 1.0
    assert found.enrichment == pytest.approx(1.0)


def test_states_with_hardly_a_row_have_no_enrichment() -> None:
    labels = (np.arange(1000) == 0).astype(np.int8)
    posteriors = np.zeros((1000, 3))
    posteriors[:, 0] = 1.0
    posteriors[:4] = [0.0, 1.0, 0.0]  # 0.4 % of rows, and the only fraud
    latents = np.zeros((1000, 1))
    assert measure_cycle(0, latents, posteriors, labels).enrichment == 0.0
    posteriors[4] = [0.0, 1.0, 0.0]
    assert measure_cycle(0, latents, posteriors, labels).enrichment == pytest.approx(1000 / 5)
    labels[:] = -1
    labels[:2] = 1, 0
    posteriors[:] = [1.0, 0.0, 0.0]
    posteriors[:2] = [0.0, 0.0, 1.0]  # the large state has no known row, the others are small
    assert measure_cycle(0, latents, posteriors, labels).enrichment is None


def test_the_bound_is_a_perfect_split() -> None:
    assert effective_states_of_split(0.5) == pytest.approx(2.0)
    assert effective_states_of_split(0.035) == pytest.approx(1.164, abs=1e-3)


def test_when_a_run_has_collapsed() -> None:
    least = effective_states_of_split(0.035)
    assert find_collapse(make_cycles((60, 40), (99, 1), (100, 0)), least) == 1
    assert find_collapse(make_cycles((99, 1), (100, 0)), least) == 0
    assert (
        find_collapse(make_cycles((60, 40), (99, 1), (60, 40), (99, 1)), least) == 3
    )  # it came back in between
    assert find_collapse(make_cycles((60, 40), (99, 1), (60, 40)), least) is None
    assert (
        find_collapse(make_cycles((60, 40), (95, 5)), least) is None
    )  # few effective states, as befits rare fraud


def test_sampled_sequences_are_whole_and_few_enough() -> None:
    drawn = sample_sequences(PANEL, 100, seed=1)
    rows = {cells.tobytes(): u for u, cells in enumerate(one.continuous for one in PANEL)}
    kept = [rows[one.continuous.tobytes()] for one in drawn]
    assert kept == sorted(set(kept))
    assert 100 - PANEL.lengths.max() < drawn.n_rows <= 100
    assert [one.tobytes() for one in sample_sequences(PANEL, 100, seed=1).continuous] == [
        one.tobytes() for one in drawn.continuous
    ]
    assert kept != [rows[one.continuous.tobytes()] for one in sample_sequences(PANEL, 100, seed=2)]
    assert sample_sequences(PANEL, PANEL.n_rows, seed=1) is PANEL
    with pytest.raises(DataError, match="max_rows is 1"):
        sample_sequences(PANEL, 1, seed=1)


def test_three_runs_cycle_by_cycle(encoder: TrainedEncoder, joint: JointTraining) -> None:
    scratch, trained, reweighted = joint.runs
    assert [run.start for run in joint.runs] == [SCRATCH, TRAINED, REWEIGHTED]
    for run in joint.runs:
        assert [one.cycle for one in run.cycles] == [0, 1, 2]
        assert all(sum(one.counts) == pytest.approx(PANEL.n_rows, rel=1e-5) for one in run.cycles)
    assert scratch.cycles[0] == reweighted.cycles[0]
    assert scratch.cycles[1] != reweighted.cycles[1]
    latents = FrozenEncoder.from_trained(encoder).embed(PANEL).continuous
    decoupled = measure_cycle(0, latents, np.ones((PANEL.n_rows, 1)), PANEL.labels)
    for name in ("separation", "relative_separation", "spread"):
        assert getattr(trained.cycles[0], name) == pytest.approx(getattr(decoupled, name), abs=1e-4)
    assert scratch.cycles[0].separation != pytest.approx(decoupled.separation, abs=1e-4)
    assert (joint.n_states, joint.latent_dim) == (3, 4)
    assert (joint.n_rows, joint.n_fit_rows) == (PANEL.n_rows, PANEL.n_rows)
    assert joint.fraud_rate == pytest.approx(PANEL.labels.mean())
    min_states = effective_states_of_split(float(PANEL.labels.mean()))
    assert joint.min_effective_states == pytest.approx(min_states)
    for run in joint.runs:
        assert run.collapsed_at == find_collapse(list(run.cycles), min_states)


def test_labels_only_measure(encoder: TrainedEncoder, joint: JointTraining) -> None:
    labels = 1 - PANEL.labels
    labels[::7] = -1
    told: list[tuple[str, int, int]] = []
    other = train_jointly_from_all_starts(
        replace(PANEL, labels=labels),
        encoder,
        n_states=3,
        cycles=2,
        seed=5,
        announce=lambda *news: told.append(news),
    )
    for run, same in zip(joint.runs, other.runs, strict=True):
        assert [(one.counts, one.spread) for one in run.cycles] == [
            (one.counts, one.spread) for one in same.cycles
        ]
        assert [one.enrichment for one in run.cycles] != [one.enrichment for one in same.cycles]
    assert told == [
        (start, done, 2) for start in (SCRATCH, TRAINED, REWEIGHTED) for done in range(3)
    ]
    assert other.fraud_rate == pytest.approx((labels == 1).sum() / (labels >= 0).sum())


def test_some_of_a_big_panel(encoder: TrainedEncoder) -> None:
    found = train_jointly_from_all_starts(
        PANEL, encoder, n_states=2, cycles=1, seed=1, max_rows=100
    )
    n_rows = sample_sequences(PANEL, 100, seed=1).n_rows
    assert (found.n_rows, found.n_fit_rows) == (n_rows, PANEL.n_rows)
    assert all(
        sum(one.counts) == pytest.approx(n_rows, rel=1e-5)
        for run in found.runs
        for one in run.cycles
    )


def test_training_is_as_the_encoders_own(encoder: TrainedEncoder, joint: JointTraining) -> None:
    faster = replace(encoder, settings=clone(encoder.settings).set_params(learning_rate=0.01))
    other = train_jointly_from_all_starts(PANEL, faster, n_states=3, cycles=1, seed=5)
    assert other.runs[1].cycles[0] == joint.runs[1].cycles[0]
    assert other.runs[1].cycles[1] != joint.runs[1].cycles[1]


def test_saved_and_loaded(joint: JointTraining, tmp_path: Path) -> None:
    path = tmp_path / "joint.json"
    save_results(joint, path)
    assert load_joint_training(path) == joint
    path.write_text("{}")
    with pytest.raises(BundleError, match="not a joint training this version can read"):
        load_joint_training(path)
    with pytest.raises(BundleError, match="cannot be read"):
        load_joint_training(tmp_path / "nothing.json")


def test_refusals(encoder: TrainedEncoder) -> None:
    with pytest.raises(ConfigError, match="n_states is 1"):
        train_jointly_from_all_starts(PANEL, encoder, n_states=1)
    with pytest.raises(DataError, match=r"label 0 and with label 1; .* have \[\]"):
        train_jointly_from_all_starts(replace(PANEL, labels=None), encoder, n_states=2)
    with pytest.raises(DataError, match=r"have \[0\]"):
        train_jointly_from_all_starts(
            replace(PANEL, labels=np.where(PANEL.labels == 1, -1, 0).astype(np.int8)),
            encoder,
            n_states=2,
        )


def test_without_torch_a_joint_training_is_read_and_refused(tmp_path: Path) -> None:
    path = tmp_path / "joint.json"
    save_results(JointTraining(2, 4, 9, 9, 0.1, 1.4, ()), path)
    script = f"""{WITHOUT_TORCH}
from pathlib import Path
from turncoat.errors import ConfigError
from turncoat.evaluation.paper.joint_training import train_jointly_from_all_starts
from turncoat.evaluation.results import load_joint_training
print(load_joint_training(Path({str(path)!r})).min_effective_states)
try:
    train_jointly_from_all_starts(None, None, n_states=2)
except ConfigError as problem:
    print(problem)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    expected = "1.4\ntraining an encoder needs the extra: pip install turncoat[neural]"
    assert done.stdout.startswith(expected)
