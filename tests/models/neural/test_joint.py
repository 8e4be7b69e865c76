"""Joint training: objective, one VBEM iteration per cycle, starts, and no use of labels."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from tests.models.neural.panels import mixed_panel, small_encoder
from turncoat import ConfigError, DataError, Panel
from turncoat.models.neural.encoder import Encoder, EncoderLayout, TrainedEncoder
from turncoat.models.neural.frozen import FrozenEncoder
from turncoat.models.neural.model import latent_prior
from turncoat.models.variational import VariationalHMM

torch = pytest.importorskip("torch")

from turncoat.models.neural.joint import (  # noqa: E402
    JointSettings,
    Snapshot,
    _JointTraining,
    equalise_states,
    expected_log_emission,
    train_jointly,
)
from turncoat.models.neural.network import build_network  # noqa: E402
from turncoat.models.neural.training import DeviceRows  # noqa: E402

PANEL = mixed_panel()
LAYOUT = EncoderLayout(PANEL.n_continuous, PANEL.n_categories, latent_dim=4, hidden_dim=16)


def joint_settings(**changes: Any) -> JointSettings:
    return JointSettings(
        **{"n_states": 3, "cycles": 2, "batch_size": 64, "device": "cpu", **changes}
    )


def snapshots(
    panel: Panel = PANEL, start: TrainedEncoder | EncoderLayout = LAYOUT, **changes: Any
) -> list[Snapshot]:
    seen: list[Snapshot] = []
    train_jointly(panel, joint_settings(**changes), start, seen.append, n_threads=1)
    return seen


def assert_same(some: list[Snapshot], others: list[Snapshot]) -> None:
    for one, other in zip(some, others, strict=True):
        np.testing.assert_array_equal(one.latents, other.latents)
        np.testing.assert_array_equal(one.posteriors, other.posteriors)


@pytest.fixture(scope="module")
def encoder() -> TrainedEncoder:
    return small_encoder().train(PANEL, n_threads=1)


@pytest.fixture(scope="module")
def seen() -> list[Snapshot]:
    return snapshots()


def test_defaults_equal_those_of_the_encoder() -> None:
    ours, theirs = JointSettings(4), Encoder()
    for name in ("dropout", "learning_rate", "batch_size", "max_gradient_norm", "device"):
        assert getattr(ours, name) == getattr(theirs, name)


def test_objective_is_the_emission_of_the_tier(seen: list[Snapshot]) -> None:
    last = seen[-1]
    states = VariationalHMM.from_params(last.params)
    by_state = states.log_emission(last.latents, np.empty((PANEL.n_rows, 0), np.int64))
    found = expected_log_emission(
        torch.tensor(last.latents, dtype=torch.float64), torch.tensor(last.posteriors), last.params
    )
    np.testing.assert_allclose(found.numpy(), (last.posteriors * by_state).sum(axis=1), rtol=1e-9)


def test_gradient_against_finite_differences(seen: list[Snapshot]) -> None:
    rows = slice(0, 5)
    latents = torch.tensor(seen[0].latents[rows], dtype=torch.float64, requires_grad=True)
    posteriors = torch.tensor(seen[0].posteriors[rows], dtype=torch.float64)
    expected_log_emission(latents, posteriors, seen[0].params).sum().backward()
    step = 1e-5
    for row, column in np.ndindex(*latents.shape):
        moved = torch.zeros_like(latents)
        moved[row, column] = step
        with torch.no_grad():
            above, below = (
                expected_log_emission(latents + sign * moved, posteriors, seen[0].params).sum()
                for sign in (1, -1)
            )
        assert float(latents.grad[row, column]) == pytest.approx(
            float(above - below) / (2 * step), rel=1e-6, abs=1e-6
        )


@pytest.mark.parametrize("reweighted", [False, True])
def test_an_epoch_raises_the_objective(reweighted: bool) -> None:
    settings = joint_settings(dropout=0.0, reweighted=reweighted)
    training = _JointTraining(PANEL, DeviceRows.from_panel(PANEL, torch.device("cpu")), settings, 1)
    encoder = build_network(LAYOUT, settings.dropout, settings.seed)
    optimiser = torch.optim.Adam(encoder.parameters(), settings.learning_rate)
    fixed = training.take_snapshot(0, encoder, None)
    weights = torch.tensor(equalise_states(fixed.posteriors) if reweighted else fixed.posteriors)
    reached = []
    for _ in range(4):
        reached.append(
            float(
                expected_log_emission(
                    torch.tensor(training.encode_rows(encoder)), weights, fixed.params
                ).mean()
            )
        )
        training.run_epoch(encoder, optimiser, fixed)
    assert (np.diff(reached) > 0).all()


def test_a_cycle_updates_the_states_once(seen: list[Snapshot]) -> None:
    """The posterior strengths are the prior's plus the counts of the new latents."""
    for before, after in pairwise(seen):
        encoded = Panel.from_arrays(after.latents, lengths=PANEL.lengths)
        counts = VariationalHMM.from_params(before.params).smooth(encoded).probs.sum(axis=0)
        np.testing.assert_allclose(
            after.params.mean_strength[:, 0], latent_prior().mean_strength + counts, rtol=1e-4
        )
        np.testing.assert_array_equal(
            after.posteriors, VariationalHMM.from_params(after.params).smooth(encoded).probs
        )


def test_every_cycle_is_observed(seen: list[Snapshot]) -> None:
    assert [one.cycle for one in seen] == [0, 1, 2]
    assert seen[0].latents.shape == (PANEL.n_rows, 4)
    assert seen[0].posteriors.shape == (PANEL.n_rows, 3)
    for before, after in pairwise(seen):
        assert np.abs(after.latents - before.latents).max() > 1e-3


def test_the_seed_decides_and_nothing_else(seen: list[Snapshot]) -> None:
    threads = torch.get_num_threads()
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    assert_same(seen, snapshots())
    assert torch.equal(before, torch.random.get_rng_state())
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.get_num_threads() == threads
    assert (seen[0].latents != snapshots(seed=1)[0].latents).any()


def test_labels_are_not_used(seen: list[Snapshot]) -> None:
    assert_same(seen, snapshots(replace(PANEL, labels=1 - PANEL.labels)))
    assert_same(seen, snapshots(replace(PANEL, labels=None)))


def test_a_trained_encoder_is_where_it_starts(encoder: TrainedEncoder) -> None:
    from_trained = snapshots(start=encoder)
    np.testing.assert_allclose(
        from_trained[0].latents,
        FrozenEncoder.from_trained(encoder).embed(PANEL).continuous,
        atol=1e-4,
    )
    kept = {name: weights.copy() for name, weights in encoder.weights.items()}
    assert_same(from_trained, snapshots(start=encoder))
    for name, weights in kept.items():
        np.testing.assert_array_equal(encoder.weights[name], weights)


def test_settings_matter(seen: list[Snapshot]) -> None:
    assert np.abs(snapshots(max_gradient_norm=1e-12)[2].latents - seen[0].latents).max() < 1e-3
    for changes in (
        {"dropout": 0.5},
        {"learning_rate": 0.01},
        {"batch_size": 32},
        {"reweighted": True},
    ):
        changed = snapshots(**changes)
        np.testing.assert_array_equal(changed[0].latents, seen[0].latents)
        assert (changed[1].latents != seen[1].latents).any()


def test_reweighted_states_weigh_the_same() -> None:
    posteriors = np.array([[0.9, 0.1, 0.0], [0.8, 0.2, 0.0], [0.5, 0.5, 0.0], [0.3, 0.7, 0.0]])
    weights = equalise_states(posteriors)
    np.testing.assert_allclose(weights.sum(axis=0), [4 / 3, 4 / 3, 0.0])
    np.testing.assert_allclose(weights[0, 0] / weights[1, 0], 0.9 / 0.8)
    scarce = np.array([[1.0, 0.0], [0.9, 0.1]])  # a state with less than a row counts as having one
    np.testing.assert_allclose(equalise_states(scarce)[:, 1], [0.0, 0.1])


def test_refusals(encoder: TrainedEncoder) -> None:
    with pytest.raises(ConfigError, match="found FrozenEncoder, which cannot be trained"):
        snapshots(start=FrozenEncoder.from_trained(encoder))  # type: ignore[arg-type]
    with pytest.raises(DataError, match="the encoder knows 5 continuous"):
        snapshots(mixed_panel(n_continuous=4))
    with pytest.raises(ConfigError, match="cycles must be a whole number of at least 1"):
        joint_settings(cycles=0)
    with pytest.raises(ConfigError, match="learning_rate must be a finite number above 0"):
        joint_settings(learning_rate=0.0)
    broken = {
        **encoder.weights,
        "projection.weight": np.full_like(encoder.weights["projection.weight"], np.inf),
    }
    with pytest.raises(DataError, match="no longer finite after cycle 0"):
        snapshots(start=replace(encoder, weights=broken))
