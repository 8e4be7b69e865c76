import numpy as np
import pytest

from turncoat.errors import ConfigError, DataError
from turncoat.evaluation.paper import latent_map as module
from turncoat.evaluation.paper.latent_map import DIFFUSION, PRINCIPAL, build_latent_map, sample_rows

NUMBERS = np.array([3, 1, 5, 0, 2, 4])  # regimes have no order of their own


@pytest.fixture
def without_umap(monkeypatch):
    """The picture is not what is tested, and takes 20 seconds to compile."""
    monkeypatch.setattr(module, "_project", lambda points, seed: points[:, [0, -1]])


def curve(n_rows=600, turn=np.pi / 2, noise=0.15, seed=0):
    """Lengths along an arc, from 0 to 1, and noisy latents on it."""
    rng = np.random.default_rng(seed)
    lengths = rng.random(n_rows)
    latents = noise * rng.normal(size=(n_rows, 8))
    latents[:, 0] += 10.0 / turn * np.sin(turn * (lengths - 0.5))
    latents[:, 1] += 10.0 / turn * np.cos(turn * (lengths - 0.5))
    return lengths, latents


def cut(lengths):
    return NUMBERS[(lengths * 6).astype(int)]


def drawn(shares, seed=1):
    return (np.random.default_rng(seed).random(len(shares)) < shares).astype(int)


def clusters(n_rows=600, gap=20.0, seed=0):
    rng = np.random.default_rng(seed)
    regimes = rng.integers(0, 4, n_rows)
    return regimes, rng.normal(size=(n_rows, 8)) + gap * regimes[:, None] * np.eye(8)[0]


def grades(found):
    test = found.manifold
    return [test.one_piece, test.segments, test.fraud_at_end, test.fading]


def axis_of(found, name):
    return next(axis for axis in found.axes if axis.name == name)


@pytest.mark.usefixtures("without_umap")
def test_a_curve_cut_into_segments_is_what_the_paper_says():
    lengths, latents = curve()
    labels = drawn(0.8 * lengths**2)
    found = build_latent_map("neural", latents, cut(lengths), labels, 4, n_states=6)
    assert grades(found) == ["holds"] * 4
    assert found.largest_piece_share > 0.95
    assert found.first_component_share > 0.8
    assert [axis.name for axis in found.axes] == [PRINCIPAL, DIFFUSION]
    assert all(
        axis.regime_order == tuple(NUMBERS) and axis.segmentation > 0.98 and axis.adjacency == 1.0
        for axis in found.axes
    )
    assert all(
        axis.monotonicity > 0.9 and axis.gradualness > 0.5 and axis.valley_depth < 0.5
        for axis in found.axes
    )
    assert (found.detector, found.n_test_rows, found.fraud_regime) == ("neural", 600, 4)
    assert len(found.x) == 600


@pytest.mark.usefixtures("without_umap")
def test_clusters_are_not_one_piece():
    regimes, latents = clusters()
    found = build_latent_map("neural", latents, regimes, (regimes == 3).astype(int), 3, n_states=4)
    assert found.largest_piece_share < 0.3
    assert [axis.name for axis in found.axes] == [PRINCIPAL]
    assert found.axes[0].valley_depth > 0.9
    assert found.axes[0].gradualness < 0.05
    assert grades(found) == ["does not hold", "holds", "holds", "does not hold"]


@pytest.mark.usefixtures("without_umap")
def test_stray_rows_do_not_tie_clusters_together():
    rng = np.random.default_rng(3)
    regimes, latents = clusters()
    latents[:3] = (
        rng.normal(size=(3, 8)) + 10.0 * np.eye(8)[0]
    )  # nearest to both of two crowds, and none of theirs
    found = build_latent_map("neural", latents, regimes, drawn(np.full(600, 0.2)), 3, n_states=4)
    assert found.largest_piece_share < 0.3


@pytest.mark.usefixtures("without_umap")
def test_regimes_at_random_are_no_segments():
    lengths, latents = curve()
    found = build_latent_map(
        "neural",
        latents,
        np.random.default_rng(2).integers(0, 6, 600),
        drawn(lengths),
        4,
        n_states=6,
    )
    assert all(axis.segmentation < 0.05 for axis in found.axes)
    assert grades(found)[1] == "does not hold"


@pytest.mark.usefixtures("without_umap")
def test_fraud_that_switches_at_a_boundary_is_not_gradual():
    lengths, latents = curve(n_rows=1500, noise=0.02)
    found = build_latent_map(
        "neural", latents, cut(lengths), drawn(np.where(lengths > 0.7, 0.8, 0.02)), 4, n_states=6
    )
    assert all(axis.gradualness < 0.15 and axis.monotonicity > 0.95 for axis in found.axes)
    assert grades(found) == ["holds", "holds", "holds", "does not hold"]


@pytest.mark.usefixtures("without_umap")
def test_fraud_in_the_middle_is_at_no_end():
    lengths, latents = curve()
    found = build_latent_map(
        "neural",
        latents,
        cut(lengths),
        drawn(0.8 * np.exp(-(((lengths - 0.5) / 0.15) ** 2))),
        0,
        n_states=6,
    )
    assert all(axis.monotonicity < 0.4 for axis in found.axes)
    assert grades(found)[2:] == ["does not hold", "does not hold"]


@pytest.mark.usefixtures("without_umap")
def test_a_curve_that_turns_back_is_unrolled_by_diffusion_alone():
    lengths, latents = curve(n_rows=1000, turn=1.8 * np.pi, noise=0.08)
    found = build_latent_map(
        "neural", latents, cut(lengths), drawn(0.8 * lengths**2), 4, n_states=6
    )
    folded, unrolled = axis_of(found, PRINCIPAL), axis_of(found, DIFFUSION)
    assert folded.regime_order != tuple(NUMBERS)
    assert unrolled.regime_order == tuple(NUMBERS)
    assert folded.segmentation < 0.96
    assert unrolled.segmentation > 0.99
    assert unrolled.valley_depth < 0.4 < folded.valley_depth
    assert found.axes[found.manifold.axis].name == DIFFUSION
    assert grades(found) == ["holds"] * 4


def test_diffusion_places_are_lengths_along_a_curve():
    lengths, latents = curve(n_rows=1500, turn=1.8 * np.pi, noise=0.02)
    distinct, which = np.unique(module._standardise(latents), axis=0, return_inverse=True)
    (line,) = module._diffusion(module._neighbour_graph(distinct), which, np.zeros(1500, int), 0)
    places = (
        line.places / np.pi
        if np.corrcoef(line.places, lengths[line.rows])[0, 1] > 0.0
        else 1.0 - line.places / np.pi
    )
    assert abs(places - lengths[line.rows]).max() < 0.05


def test_diffusion_is_what_its_definition_says():
    points = np.random.default_rng(0).exponential(size=(80, 2)) * [3.0, 1.0]
    distances = np.linalg.norm(points[:, None] - points, axis=2)
    ranks = distances.argsort(axis=1).argsort(axis=1)
    scale = np.sort(distances, axis=1)[:, 15]
    weights = (
        np.exp(-(distances**2) / np.outer(scale, scale))
        * ((ranks <= 15) | (ranks.T <= 15))
        * (1.0 - np.eye(80))
    )
    weights /= np.outer(weights.sum(axis=0), weights.sum(axis=0))
    values, vectors = np.linalg.eig(weights / weights.sum(axis=1, keepdims=True))
    component = vectors[:, values.real.argsort()[-2]].real
    (line,) = module._diffusion(
        module._neighbour_graph(points), np.arange(80), np.zeros(80, int), 0
    )
    wanted = np.arccos(
        -np.where(component < 0.0, component / -component.min(), component / component.max())
    )
    wanted = wanted if np.corrcoef(wanted, line.places)[0, 1] > 0.0 else np.pi - wanted
    assert line.places == pytest.approx(wanted, abs=1e-3)


@pytest.mark.usefixtures("without_umap")
def test_frauds_on_an_island_are_not_left_out_of_the_test():
    lengths, latents = curve()
    labels = (lengths > 0.95).astype(int)
    latents[labels == 1, 2] += 20.0
    found = build_latent_map("neural", latents, cut(lengths), labels, 4, n_states=6)
    assert found.largest_piece_share > 0.9
    assert [axis.name for axis in found.axes] == [
        PRINCIPAL
    ]  # the diffusion component would have no fraud
    assert grades(found)[0] == "does not hold"
    assert found.manifold.fraud_in_piece == 0.0


@pytest.mark.usefixtures("without_umap")
def test_the_share_of_frauds_is_kept_in_fewer_rows():
    lengths, latents = curve(n_rows=1000)
    labels = drawn(0.1 * lengths)
    found = build_latent_map("neural", latents, cut(lengths), labels, 4, n_states=6, max_rows=200)
    assert found.n_test_rows == 1000
    assert len(found.x) == len(found.y) == len(found.regimes) == len(found.labels) == 200
    assert sum(found.labels) == round(labels.sum() / 5)


def test_drawn_rows_are_different_ones_in_random_order_with_a_fraud():
    labels = np.zeros(1000, int)
    labels[7] = 1
    rows = sample_rows(labels, 50, 0)
    assert len(set(rows.tolist())) == 50
    assert 7 in rows
    assert (np.diff(rows) < 0).any()
    assert rows.tolist() == sample_rows(labels, 50, 0).tolist()
    assert rows.tolist() != sample_rows(labels, 50, 1).tolist()
    assert sorted(sample_rows(labels, 1000, 0)) == list(range(1000))
    assert len(sample_rows(np.ones(10, int), 9, 0)) == 9


def test_umap_draws_the_same_map_of_the_same_rows_by_the_same_seed():
    regimes, latents = clusters(n_rows=150)
    labels = drawn(np.full(150, 0.2))
    first, second = (
        build_latent_map("neural", latents, regimes, labels, 3, n_states=4, max_rows=100, seed=5)
        for _ in range(2)
    )
    assert first == second
    places, own = np.column_stack([first.x, first.y]), np.array(first.regimes)
    centres = np.stack([places[own == regime].mean(axis=0) for regime in range(4)])
    assert (
        np.linalg.norm(places[:, None] - centres, axis=2).argmin(axis=1) == own
    ).all()  # clusters far apart stay apart
    rows = sample_rows(labels, 100, 5)
    assert (first.regimes, first.labels) == (
        tuple(regimes[rows].tolist()),
        tuple(labels[rows].tolist()),
    )


@pytest.mark.usefixtures("without_umap")
def test_another_seed_draws_other_rows():
    lengths, latents = curve(n_rows=300)
    maps = [
        build_latent_map(
            "neural", latents, cut(lengths), drawn(lengths), 4, n_states=6, max_rows=100, seed=seed
        )
        for seed in (0, 1)
    ]
    assert maps[0].regimes != maps[1].regimes


@pytest.mark.parametrize("n_rows", [1, 2, 3, 14, 15])
def test_few_rows_are_drawn_without_umap_and_not_tested(n_rows):
    _, latents = curve(n_rows=n_rows)
    found = build_latent_map(
        "neural", latents, np.zeros(n_rows, int), np.ones(n_rows, int), 0, n_states=2
    )
    assert len(found.x) == len(found.y) == n_rows
    assert found.n_test_rows == n_rows
    assert found.projection == "two principal components"
    assert (found.axes, found.largest_piece_share) == ((), 1.0)
    assert found.manifold is None


def test_latents_that_differ_by_rounding_only_are_one_point():
    latents = np.full((300, 4), 1e3) + 1e-13 * np.random.default_rng(0).normal(size=(300, 4))
    found = build_latent_map(
        "neural", latents, np.arange(300) % 3, np.arange(300) % 2, 0, n_states=3
    )
    assert set(found.x) == set(found.y) == {0.0}
    assert (found.first_component_share, found.largest_piece_share, found.axes) == (0.0, 1.0, ())
    assert found.manifold is None


@pytest.mark.usefixtures("without_umap")
def test_copies_of_rows_change_no_neighbours():
    lengths, latents = curve(n_rows=100)
    once = build_latent_map("neural", latents, cut(lengths), drawn(lengths), 4, n_states=6)
    often = build_latent_map(
        "neural",
        *(np.repeat(what, 20, axis=0) for what in (latents, cut(lengths), drawn(lengths))),
        4,
        n_states=6,
    )
    assert often.largest_piece_share == pytest.approx(once.largest_piece_share)
    assert axis_of(often, DIFFUSION).segmentation == pytest.approx(
        axis_of(once, DIFFUSION).segmentation, abs=0.01
    )


@pytest.mark.usefixtures("without_umap")
def test_one_regime_no_fraud_and_one_latent_column_are_still_a_map():
    _, latents = curve(n_rows=200)
    found = build_latent_map(
        "neural", latents[:, :1], np.ones(200, int), np.zeros(200, int), 0, n_states=2
    )
    assert [axis.name for axis in found.axes] == [PRINCIPAL, DIFFUSION]
    assert all(
        (axis.monotonicity, axis.gradualness, axis.adjacency, axis.regime_order)
        == (None, None, None, (1,))
        for axis in found.axes
    )
    assert found.first_component_share == 1.0
    assert grades(found)[1:] == ["cannot be tested"] * 3


@pytest.mark.usefixtures("without_umap")
def test_a_fraud_regime_without_rows_is_said():
    lengths, latents = curve()
    found = build_latent_map("neural", latents, cut(lengths), drawn(lengths), 6, n_states=7)
    assert found.fraud_regime not in found.axes[found.manifold.axis].regime_order
    assert found.manifold.fraud_at_end != "holds"
    assert grades(found)[2] == "holds in part"


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"latents": np.zeros((0, 3))}, DataError, "at least one row"),
        ({"latents": np.full((20, 3), np.nan)}, DataError, "finite"),
        ({"regimes": np.full(20, 2)}, DataError, "regimes must be whole numbers below 2"),
        ({"labels": np.zeros(19)}, DataError, "labels must be"),
        ({"fraud_regime": 2}, ConfigError, "must be one of 2"),
        ({"max_rows": 0}, ConfigError, "max_rows 1 or more"),
    ],
)
def test_what_cannot_be_mapped_is_refused(change, error, message):
    given = {
        "latents": np.zeros((20, 3)),
        "regimes": np.zeros(20, int),
        "labels": np.zeros(20, int),
        "fraud_regime": 0,
        "n_states": 2,
    }
    with pytest.raises(error, match=message):
        build_latent_map("neural", **{**given, **change})
