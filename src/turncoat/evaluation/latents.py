"""An encoder's latents: where rows lie in a picture (UMAP) and along lines (without UMAP), on which a claim about them is tested."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from turncoat.arrays import Array
from turncoat.errors import ConfigError, DataError
from turncoat.evaluation.manifold import LEAST_ROWS, Direction, smaller_share, verdict, walk
from turncoat.evaluation.results import LatentMap
from turncoat.evaluation.tuning import from_extra

NEIGHBOURS = 15
PRINCIPAL = "first principal component"
DIFFUSION = "first diffusion component"
UMAP, COMPONENTS = "UMAP", "two principal components"
_DIGITS = 6  # latents that agree to so many, relative to their spread, are the same point
_PLACED = 0.9  # share of rows and of frauds on a diffusion component, at least
_FARTHEST = 50.0  # exponent of the weakest weight, so that none vanishes
_BASIS = 60  # Lanczos vectors: eigenvalues of a long thin graph lie close together
_EXPECTED_WARNINGS = ("Tensorflow not installed", "Spectral initialisation failed")


def latent_map(
    candidate: str,
    measured: str,
    latents: Array,
    regimes: Array,
    labels: Array,
    fraud_regime: int,
    *,
    n_states: int,
    head: Array | None = None,
    most_rows: int = 5000,
    seed: int = 0,
) -> LatentMap:
    """A picture of at most so many rows' latents [N, d], and a test on the same rows of what it is said to show.

    Rows are drawn at random, with the share of frauds that all have. Lines that do not exist (latents that hardly differ) are left
    out. `head` [N] is the score of the encoder's own head, to which lines are compared. Fewer than 16 different latents are drawn
    along their two principal components, which `drawn_by` then says.
    """
    latents, regimes, labels = _checked(latents, regimes, labels, fraud_regime, n_states, most_rows)
    rows = some_rows(labels, most_rows, seed)
    points, regimes, labels = _scaled(latents[rows]), regimes[rows], labels[rows]
    distinct, which = np.unique(points, axis=0, return_inverse=True)
    components, first_share = _principal(points)
    in_piece = np.ones(len(rows), bool)
    lines = []
    if len(distinct) >= LEAST_ROWS:
        lines.append(Direction(PRINCIPAL, np.arange(len(points)), components[:, 0]))
    if len(distinct) > 1:
        graph = _neighbours(distinct)
        in_piece = _in_largest(graph.minimum(graph.T), which)
        lines.extend(_diffusion(graph, which, labels, seed))
    walks = [
        walk(
            line,
            points,
            regimes,
            labels,
            n_states,
            None if head is None else np.asarray(head)[rows],
        )
        for line in lines
    ]
    is_drawn = len(distinct) > NEIGHBOURS
    places = _umap(points, seed) if is_drawn else components
    return LatentMap(
        candidate,
        f"{measured}; {len(rows):,} of {len(latents):,} rows",
        tuple(places[:, 0].tolist()),
        tuple(places[:, 1].tolist()),
        tuple(regimes.tolist()),
        tuple(labels.tolist()),
        fraud_regime,
        first_share,
        float(in_piece.mean()),
        tuple(one.axis for one in walks),
        verdict(walks, in_piece, labels, fraud_regime, seed),
        UMAP if is_drawn else COMPONENTS,
    )


def some_rows(labels: Array, most: int, seed: int) -> Array:
    """At most so many rows in random order, the same share of frauds and of the others; a fraud at least, if there is any."""
    rng = np.random.default_rng(seed)
    rows = rng.permutation(len(labels))
    if len(rows) <= most:
        return rows
    frauds, others = rows[labels[rows] == 1], rows[labels[rows] == 0]
    n_frauds = min(max(round(most * len(frauds) / len(rows)), min(1, len(frauds))), most)
    return rng.permutation(np.concatenate([frauds[:n_frauds], others[: most - n_frauds]]))


def _checked(
    latents: Array, regimes: Array, labels: Array, fraud_regime: int, n_states: int, most_rows: int
) -> tuple[Array, Array, Array]:
    latents, regimes, labels = (
        np.asarray(latents, np.float64),
        np.asarray(regimes),
        np.asarray(labels),
    )
    if latents.ndim != 2 or latents.size == 0 or not np.isfinite(latents).all():
        raise DataError(
            f"latents must be finite numbers, rows by columns, with a row at least; found shape {latents.shape}"
        )
    for name, values, limit in (("regimes", regimes, n_states), ("labels", labels, 2)):
        if values.shape != latents.shape[:1] or not np.isin(values, np.arange(limit)).all():
            raise DataError(
                f"{name} must be whole numbers below {limit}, one for each of the {len(latents):,} latents"
            )
    if not 0 <= fraud_regime < n_states or most_rows < 1:
        raise ConfigError(
            f"the fraud regime must be one of {n_states}, and most_rows 1 or more; found {fraud_regime} and {most_rows}"
        )
    return latents, regimes.astype(np.int64), labels.astype(np.int64)


def _scaled(latents: Array) -> Array:
    """Latents about their mean in units of their spread, rounded: all zero if they differ only by rounding."""
    centred = latents - latents.mean(axis=0)
    spread = float(np.sqrt((centred**2).mean()))
    return (
        np.zeros_like(centred)
        if spread <= 1e-9 * float(abs(latents).max())
        else np.round(centred / spread, _DIGITS) + 0.0
    )


def _principal(points: Array) -> tuple[Array, float]:
    """The first two principal components [N, 2], and the share of variance along the first; 0 without any variance."""
    centred = points - points.mean(axis=0)
    values, vectors = np.linalg.eigh(centred.T @ centred)
    components = np.zeros((len(points), 2))
    components[:, : min(2, len(values))] = centred @ vectors[:, ::-1][:, :2]
    return components, float(values[-1] / values.sum()) if values.sum() > 0.0 else 0.0


def _neighbours(distinct: Array) -> Any:
    """The graph from each point to its 15 nearest, with distances."""
    from scipy.sparse import csr_array
    from sklearn.neighbors import NearestNeighbors

    n_points, n_near = len(distinct), min(NEIGHBOURS, len(distinct) - 1)
    distances, nearest = NearestNeighbors(n_neighbors=n_near).fit(distinct).kneighbors()
    found = (
        np.maximum(distances, 10.0**-_DIGITS).ravel(),
        (np.repeat(np.arange(n_points), n_near), nearest.ravel()),
    )
    return csr_array(found, shape=(n_points, n_points))


def _in_largest(graph: Any, which: Array) -> Array:
    """Which rows [N] are in the connected piece that has most rows, given the point of each.

    Asked of mutual neighbours (each among the other's nearest), so that it can fail: if one side were enough, any stray row would
    tie itself to the nearest crowd, and few of them would tie crowds to each other.
    """
    from scipy.sparse.csgraph import connected_components

    pieces = connected_components(graph, directed=False)[1][which]
    return np.asarray(pieces == np.bincount(pieces).argmax())


def _diffusion(graph: Any, which: Array, labels: Array, seed: int) -> list[Direction]:
    """The first diffusion component on the largest piece, if that has 20 points, nine rows in ten and nine frauds in ten.

    Neighbours on either side are joined here, so that few rows are left out. Weights are Gaussian, in units of both points' distances
    to their 15th neighbour, and divided by both points' sums (alpha = 1), so that dense places do not attract. Along any curve of even
    density the component is a cosine of the length; places are the lengths. With uneven density they count steps between neighbours.
    """
    from scipy.sparse import csr_array, diags_array
    from scipy.sparse.linalg import eigsh

    either = graph.maximum(graph.T)
    placed = _in_largest(either, which)
    rows = np.flatnonzero(placed)
    points, own = np.unique(which[rows], return_inverse=True)
    if len(points) < LEAST_ROWS or smaller_share(placed, labels) < _PLACED:
        return []
    scale = graph.max(axis=1).toarray().ravel()[points]
    near = either[points][:, points].tocoo()
    weights = np.exp(-np.minimum(near.data**2 / (scale[near.row] * scale[near.col]), _FARTHEST))
    affinity = csr_array((weights, (near.row, near.col)), shape=near.shape)
    for power in (1.0, 0.5):
        sums = diags_array(affinity.sum(axis=0) ** -power)
        affinity = sums @ affinity @ sums
    start = np.random.default_rng(seed).normal(size=len(points))
    vectors = eigsh(affinity, k=2, which="LA", v0=start, ncv=min(_BASIS, len(points)), tol=1e-6)[1]
    component = (
        vectors[:, 0] * sums.diagonal()
    )  # of the two highest eigenvalues the lower comes first
    cosine = np.where(component < 0.0, component / -component.min(), component / component.max())
    return [Direction(DIFFUSION, rows, np.arccos(-cosine)[own])]


def _umap(points: Array, seed: int) -> Array:
    with warnings.catch_warnings():
        for message in _EXPECTED_WARNINGS:
            warnings.filterwarnings("ignore", message)
        umap = from_extra("umap", "the latent map")
        drawn = umap.UMAP(
            n_neighbors=NEIGHBOURS, min_dist=0.1, random_state=seed, n_jobs=1
        ).fit_transform(points)
    return np.asarray(drawn, np.float64)
