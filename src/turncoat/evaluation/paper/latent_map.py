"""An encoder's latents: a map by UMAP, and axes without UMAP to test the claim on."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import csr_array, diags_array
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import eigsh
from sklearn.neighbors import NearestNeighbors

from turncoat.arrays import Array
from turncoat.errors import ConfigError, DataError, import_extra
from turncoat.evaluation.paper import manifold
from turncoat.evaluation.paper.manifold import MIN_ROWS, Direction, LatentAxis, ManifoldTest

N_NEIGHBOURS = 15
PRINCIPAL, DIFFUSION = "first principal component", "first diffusion component"
UMAP, COMPONENTS = "UMAP", "two principal components"
_DIGITS = 6  # latents that agree to so many, relative to their spread, are the same point
_MIN_PLACED = 0.9  # share of rows and of frauds on a diffusion component
_MAX_EXPONENT = 50.0  # of the weakest weight, so that none vanishes
_LANCZOS_VECTORS = 60  # eigenvalues of a long thin graph lie close together
_EXPECTED_WARNINGS = ("Tensorflow not installed", "Spectral initialisation failed")


@dataclass(frozen=True)
class LatentMap:
    """Latents of some test rows in two dimensions, and the manifold test (which uses no UMAP)."""

    detector: str
    n_test_rows: int  # of which the map shows `len(x)`
    x: tuple[float, ...]
    y: tuple[float, ...]
    regimes: tuple[int, ...]  # most likely one
    labels: tuple[int, ...]
    fraud_regime: int
    first_component_share: float  # of the variance
    largest_piece_share: float  # of rows in the largest piece of the mutual-neighbour graph
    axes: tuple[LatentAxis, ...]
    manifold: ManifoldTest | None  # None if too few rows differ
    projection: str = UMAP


def build_latent_map(
    detector: str,
    latents: Array,
    regimes: Array,
    labels: Array,
    fraud_regime: int,
    *,
    n_states: int,
    head: Array | None = None,
    max_rows: int = 5000,
    seed: int = 0,
) -> LatentMap:
    """Map at most `max_rows` latents [N, d] and test the manifold claim on the same rows.

    Rows are drawn at random with the overall fraud rate. An axis that does not exist, because
    latents hardly differ, is left out. `head` [N] is the score of the encoder's own head. Fewer
    than 16 distinct latents are projected on their two principal components.
    """
    latents, regimes, labels = _check(latents, regimes, labels, fraud_regime, n_states, max_rows)
    rows = sample_rows(labels, max_rows, seed)
    points, regimes, labels = _standardise(latents[rows]), regimes[rows], labels[rows]
    head = None if head is None else np.asarray(head)[rows]
    distinct, which = np.unique(points, axis=0, return_inverse=True)
    components, first_share = _principal_components(points)
    in_piece = np.ones(len(rows), bool)
    directions = []
    if len(distinct) >= MIN_ROWS:
        directions.append(Direction(PRINCIPAL, np.arange(len(points)), components[:, 0]))
    if len(distinct) > 1:
        graph = _neighbour_graph(distinct)
        # Mutual neighbours, so that the test can fail: if one side were enough, any stray row
        # would connect to the nearest crowd, and few of them would connect crowds.
        in_piece = _largest_piece(graph.minimum(graph.T), which)
        directions.extend(_diffusion(graph, which, labels, seed))
    walks = [manifold.walk(one, points, regimes, labels, n_states, head) for one in directions]
    projection = UMAP if len(distinct) > N_NEIGHBOURS else COMPONENTS
    places = _project(points, seed) if projection == UMAP else components
    columns = (places[:, 0], places[:, 1], regimes, labels)
    x, y, own_regimes, own_labels = (tuple(column.tolist()) for column in columns)
    shares, axes = (first_share, float(in_piece.mean())), tuple(one.axis for one in walks)
    test = manifold.grade_claims(walks, in_piece, labels, fraud_regime, seed)
    about = (fraud_regime, *shares, axes, test, projection)
    return LatentMap(detector, len(latents), x, y, own_regimes, own_labels, *about)


def sample_rows(labels: Array, max_rows: int, seed: int) -> Array:
    """At most `max_rows` rows in random order with the overall fraud rate, and a fraud if any."""
    rng = np.random.default_rng(seed)
    rows = rng.permutation(len(labels))
    if len(rows) <= max_rows:
        return rows
    frauds, others = rows[labels[rows] == 1], rows[labels[rows] == 0]
    n_frauds = round(max_rows * len(frauds) / len(rows))
    n_frauds = min(max(n_frauds, min(1, len(frauds))), max_rows)
    return rng.permutation(np.concatenate([frauds[:n_frauds], others[: max_rows - n_frauds]]))


def _check(
    latents: Array, regimes: Array, labels: Array, fraud_regime: int, n_states: int, max_rows: int
) -> tuple[Array, Array, Array]:
    latents = np.asarray(latents, np.float64)
    regimes, labels = np.asarray(regimes), np.asarray(labels)
    if latents.ndim != 2 or latents.size == 0 or not np.isfinite(latents).all():
        rule = "latents must be finite numbers [rows, columns] with at least one row"
        raise DataError(f"{rule}; found shape {latents.shape}")
    for name, values, limit in (("regimes", regimes, n_states), ("labels", labels, 2)):
        if values.shape != latents.shape[:1] or not np.isin(values, np.arange(limit)).all():
            rule = f"whole numbers below {limit}, one for each of the {len(latents):,} latents"
            raise DataError(f"{name} must be {rule}")
    if not 0 <= fraud_regime < n_states or max_rows < 1:
        rule = f"the fraud regime must be one of {n_states}, and max_rows 1 or more"
        raise ConfigError(f"{rule}; found {fraud_regime} and {max_rows}")
    return latents, regimes.astype(np.int64), labels.astype(np.int64)


def _standardise(latents: Array) -> Array:
    """Centred latents in units of their spread, rounded; zero if they differ by rounding only."""
    centred = latents - latents.mean(axis=0)
    spread = float(np.sqrt((centred**2).mean()))
    if spread <= 1e-9 * float(abs(latents).max()):
        return np.zeros_like(centred)
    return np.asarray(np.round(centred / spread, _DIGITS) + 0.0)


def _principal_components(points: Array) -> tuple[Array, float]:
    """The first two components [N, 2], and the variance share of the first (0 without any)."""
    centred = points - points.mean(axis=0)
    values, vectors = np.linalg.eigh(centred.T @ centred)
    components = np.zeros((len(points), 2))
    components[:, : min(2, len(values))] = centred @ vectors[:, ::-1][:, :2]
    return components, float(values[-1] / values.sum()) if values.sum() > 0.0 else 0.0


def _neighbour_graph(distinct: Array) -> Any:
    """The graph from each point to its 15 nearest, with distances."""
    n_points, n_near = len(distinct), min(N_NEIGHBOURS, len(distinct) - 1)
    distances, nearest = NearestNeighbors(n_neighbors=n_near).fit(distinct).kneighbors()
    weights = np.maximum(distances, 10.0**-_DIGITS).ravel()
    edges = (np.repeat(np.arange(n_points), n_near), nearest.ravel())
    return csr_array((weights, edges), shape=(n_points, n_points))


def _largest_piece(graph: Any, which: Array) -> Array:
    """Mask [N] of the rows in the largest connected piece, given each row's point `which` [N]."""
    pieces = connected_components(graph, directed=False)[1][which]
    return np.asarray(pieces == np.bincount(pieces).argmax())


def _diffusion(graph: Any, which: Array, labels: Array, seed: int) -> list[Direction]:
    """The first diffusion component on the largest piece, if it holds 90 % of rows and frauds.

    Neighbours on either side are connected here, so that few rows are left out. Weights are
    Gaussian in units of both points' distances to their 15th neighbour, and normalised with
    alpha = 1, so that dense places do not attract. Along a curve of even density the component is a
    cosine of the length, so places are lengths; otherwise they count steps between neighbours.
    """
    either = graph.maximum(graph.T)
    placed = _largest_piece(either, which)
    rows = np.flatnonzero(placed)
    points, own = np.unique(which[rows], return_inverse=True)
    if len(points) < MIN_ROWS or manifold.smaller_share(placed, labels) < _MIN_PLACED:
        return []
    scale = graph.max(axis=1).toarray().ravel()[points]
    near = either[points][:, points].tocoo()
    exponents = near.data**2 / (scale[near.row] * scale[near.col])
    weights = np.exp(-np.minimum(exponents, _MAX_EXPONENT))
    affinity = csr_array((weights, (near.row, near.col)), shape=near.shape)
    for power in (1.0, 0.5):
        sums = diags_array(affinity.sum(axis=0) ** -power)
        affinity = sums @ affinity @ sums
    start = np.random.default_rng(seed).normal(size=len(points))
    n_vectors = min(_LANCZOS_VECTORS, len(points))
    vectors = eigsh(affinity, k=2, which="LA", v0=start, ncv=n_vectors, tol=1e-6)[1]
    component = vectors[:, 0] * sums.diagonal()  # the lower of the two eigenvalues comes first
    cosine = np.where(component < 0.0, component / -component.min(), component / component.max())
    return [Direction(DIFFUSION, rows, np.arccos(-cosine)[own])]


def _project(points: Array, seed: int) -> Array:
    with warnings.catch_warnings():
        for message in _EXPECTED_WARNINGS:
            warnings.filterwarnings("ignore", message)
        umap = import_extra("umap", "the latent map")
        model = umap.UMAP(n_neighbors=N_NEIGHBOURS, min_dist=0.1, random_state=seed, n_jobs=1)
        return np.asarray(model.fit_transform(points), np.float64)
