"""What a study found, as plain values: the one thing that reports are made from, and what `results.json` holds.

Every figure says which rows and which inference it comes from. Numbers that do not exist (no fraud in a slice) are None.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import msgspec

from turncoat.errors import BundleError
from turncoat.storage import replace_file

VERSION = 1
Interval = tuple[float, float]
Kind = TypeVar("Kind")


@dataclass(frozen=True)
class Figure:
    """One metric of one candidate: the mean over folds and seeds, its spread, and 90 % bootstrap intervals of the mean."""

    value: float | None
    by_fold: tuple[float | None, ...]  # mean over seeds
    over_seeds: (
        float | None
    )  # standard deviation over seeds of the mean over folds; None with one seed
    by_transaction: Interval | None  # transactions drawn with replacement
    by_customer: Interval | None  # customers drawn with replacement


@dataclass(frozen=True)
class Curves:
    """Curves on the test rows of all folds together, first seed; thinned for drawing."""

    recall: tuple[float, ...]
    precision: tuple[float, ...]
    mean_score: tuple[float, ...]  # of bins of equal mass
    fraud_share: tuple[float, ...]
    bin_rows: tuple[int, ...]


@dataclass(frozen=True)
class CandidateResult:
    """A model whose scores were judged on the test rows, all out of sample."""

    name: str  # unique, for people: "variational, anchored, corrected, filtered"
    family: str  # "hmm", "baseline", "hybrid", "ranker" or "calibrated"
    tier: str | None  # "baum-welch", "variational" or "neural"; None for what is no HMM
    supervision: str | None  # "none" or "anchored"; None for what is no HMM
    mode: str | None  # "filtered" or "smoothed"; None for what is no HMM
    kind: str  # "corrected", "raw", "probability" or "anomaly"
    is_probability: bool  # whether calibration figures mean anything
    figures: dict[str, Figure]  # by metric, see METRICS
    curves: Curves
    note: str = ""


@dataclass(frozen=True)
class Comparison:
    """One candidate less another, on the same resamples: positive means that the first is higher."""

    first: str
    second: str
    metric: str
    difference: float
    by_transaction: Interval
    by_customer: Interval
    wilcoxon_p: (
        float | None
    )  # paired, over the transactions' losses; None for metrics without a loss per transaction
    headline: str = ""  # a sentence, for the comparisons that matter most


@dataclass(frozen=True)
class SliceRow:
    """Some of the test rows."""

    label: str  # "first", "2nd to 4th", "scenario 2"
    rows: int
    frauds: int
    figures: dict[str, float | None]


@dataclass(frozen=True)
class SliceTable:
    """One candidate over slices of the test rows."""

    title: str  # "by length of history" or "by scenario"
    candidate: str
    rows: tuple[SliceRow, ...]


@dataclass(frozen=True)
class OrderRow:
    """One K of a sweep, measured on the selection part."""

    n_states: int
    criteria: dict[str, float]  # "bic", "elbo", "held_out"
    occupancy: float
    rate: float
    enrichment: float | None
    eligible: bool
    kept: bool
    reason: str


@dataclass(frozen=True)
class Selection:
    """How K was chosen for a tier."""

    tier: str
    features: str  # "engineered" or "processed"
    measured: str  # "selection part (held out), filtered"
    base_rate: float
    orders: tuple[OrderRow, ...]
    criterion: str | None
    by_criterion: int | None  # None without a criterion that all orders have
    by_eligibility: int | None
    used: int  # the K that the candidates have
    why_used: str
    sensitivity: tuple[dict[str, float | None], ...]  # rows of min_occupancy, min_gain, n_states
    stability: tuple[
        dict[str, float | None], ...
    ]  # rows of n_states, by_eligibility, by_criterion (shares); may be empty
    is_used: bool = True  # False for a width of latents that was swept and not chosen


@dataclass(frozen=True)
class RegimeRow:
    """One regime."""

    number: int
    share: float
    fraud_rate: float
    lower: float
    upper: float
    enrichment: float | None
    stickiness: float
    words: tuple[
        str, ...
    ]  # what defines it, strongest first: "amount to mean: far above the average (+2.1 spreads)"


@dataclass(frozen=True)
class RegimeTable:
    """The regimes of one fitted detector."""

    candidate: str  # such as "variational"
    measured: str  # "calibration part, filtered, held out"
    fraud_regime: int
    temperature: float
    temporal_share: float
    misread_share: float  # MRIE
    signed_gap: float
    saturation: float  # share of test rows with a belief above 0.999 in one regime
    rows: tuple[RegimeRow, ...]
    transition: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class TierRow:
    """The fraud regime of a detector on the test rows, filtered: means over folds and seeds, 90 % bootstrap intervals by customer."""

    name: str  # such as "neural, anchored"
    candidate: str  # its corrected, filtered scores
    n_states: int
    latent_dim: int | None  # None without an encoder
    occupancy: float  # share of the transactions
    fraud_rate: float | None
    captured: float | None  # share of the frauds
    enrichment: float | None
    occupancy_interval: Interval
    fraud_rate_interval: Interval | None
    captured_interval: Interval | None
    enrichment_interval: Interval | None


@dataclass(frozen=True)
class Training:
    """How the training of an encoder went, first fold and seed. Validation customers are some of the fit part's, held out."""

    candidate: str  # such as "neural"
    latent_dim: int
    train_losses: tuple[float, ...]  # after each epoch
    validation_losses: tuple[float, ...]
    best_epoch: int  # whose weights were kept, counted from 1
    stopped_early: bool
    class_weight: float  # of a fraud row


@dataclass(frozen=True)
class Axis:
    """Some rows laid out along one direction of the latents, in bins of equally many, and what that says of regimes and frauds."""

    name: str  # "first principal component" or "first diffusion component"
    fraud_share: tuple[float, ...]  # by bin
    regime_shares: tuple[tuple[float, ...], ...]  # by bin, of every regime
    order: tuple[int, ...]  # regimes by their median place
    segmented: float  # variance of ranks between regimes, over that of unbroken segments: 1 if they are such, 0 if they are mixed
    adjacent: (
        float | None
    )  # share of the regimes whose nearest centroid is that of a regime next to them here; None below 3
    gradual: (
        float | None
    )  # 0 where the fraud share switches at one boundary, 1 for an even ramp; None with few frauds
    monotone: (
        float | None
    )  # share of the variance of `fraud_share` that the best monotone curve explains
    valley: float  # depth of the deepest valley of the density between its two highest sides: 0 without one, 1 for a gap
    head: float | None = (
        None  # rank correlation with the score of the encoder's own head; None if that is not known
    )


@dataclass(frozen=True)
class LatentMap:
    """Latents of some rows in two dimensions, and whether they are one manifold that regimes cut into segments (no UMAP)."""

    candidate: str
    measured: str  # "test part, first fold and seed, filtered; 5,000 of 20,000 rows"
    x: tuple[float, ...]
    y: tuple[float, ...]
    regimes: tuple[int, ...]  # most likely one
    labels: tuple[int, ...]
    fraud_regime: int
    first_component: float  # share of the latents' variance along their first principal component
    largest_piece: float  # share of the rows in the largest piece of the nearest neighbours' graph: 1 if they are one
    axes: tuple[Axis, ...]
    verdict: tuple[str, ...]  # what of the paper's claim holds here, in sentences with figures
    drawn_by: str = "UMAP"  # or "two principal components", where too few rows differ


@dataclass(frozen=True)
class JointCycle:
    """The state of a joint training after so many cycles, measured on the fit rows it trains on."""

    cycle: int
    counts: tuple[float, ...]  # effective count of every state, largest first
    effective_states: float  # exp of the entropy of occupancies: 1 when one state has everything
    separation: float  # distance of the centroids of fraud and legitimate latents
    relative_separation: float  # the same over the spread of latents within the two
    spread: float  # root mean square distance of latents from their mean
    enrichment: (
        float | None
    )  # of the state with the highest fraud share among those that hold at least 0.5 % of rows


@dataclass(frozen=True)
class JointRun:
    """One joint training, cycle by cycle."""

    start: str  # "from scratch" or "from the trained encoder"
    cycles: tuple[JointCycle, ...]


@dataclass(frozen=True)
class JointAblation:
    """Encoder and states trained together, as the paper tried first, beside the decoupled tier."""

    n_states: int
    latent_dim: int
    measured: str  # which rows
    runs: tuple[JointRun, ...]
    verdict: tuple[str, ...]  # whether occupancy collapsed, with figures


@dataclass(frozen=True)
class Published:
    """A row of somebody else's table, to stand beside ours."""

    name: str
    source: str
    figures: dict[str, float]


@dataclass(frozen=True)
class PartRow:
    """How much is in a part of the split: rows and frauds over all folds, customers of the fold that has most."""

    part: str
    rows: int
    customers: int
    frauds: int


@dataclass(frozen=True)
class Results:
    """Everything that a report shows."""

    title: str
    protocol: str  # "matched", "paper" or "handbook"
    preset: str
    summary: tuple[str, ...]  # what was done and what came out, in plain sentences
    data: dict[
        str, str
    ]  # "rows", "customers", "fraud share", "first", "last", "source", "schema": as shown
    split: str  # how the parts were made, in words
    parts: tuple[PartRow, ...]
    n_folds: int
    seeds: tuple[int, ...]
    candidates: tuple[CandidateResult, ...]
    scoring: tuple[
        str, ...
    ]  # candidates of the scoring table: raw/smoothed, corrected/smoothed, corrected/filtered of each tier
    comparisons: tuple[Comparison, ...]
    slices: tuple[SliceTable, ...]
    selections: tuple[Selection, ...]
    regimes: tuple[RegimeTable, ...]
    published: tuple[Published, ...]
    errata: tuple[str, ...]  # what the corrections to the paper change here, with figures
    warnings: tuple[str, ...]
    tiers: tuple[TierRow, ...] = ()
    trainings: tuple[Training, ...] = ()
    latents: tuple[LatentMap, ...] = ()
    joint: JointAblation | None = None
    version: int = field(default=VERSION)


def save_results(results: Results | JointAblation, path: Path) -> None:
    """Write `results.json`, or a part of it, in one instant or not at all."""
    replace_file(path, msgspec.json.format(msgspec.json.encode(results), indent=1))


def load_results(path: Path) -> Results:
    """Read `results.json`."""
    return _read(path, Results, "results", "Give the folder of a finished `turncoat compare`")


def load_ablation(path: Path) -> JointAblation:
    """Read an ablation that was saved by itself."""
    return _read(
        path, JointAblation, "an ablation", "Make it again with `turncoat compare --ablation joint`"
    )


def _read(path: Path, kind: type[Kind], what: str, remedy: str) -> Kind:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except OSError as problem:
        raise BundleError(f"{path}: cannot be read ({problem.strerror}). {remedy}") from problem
    except msgspec.MsgspecError as problem:
        raise BundleError(f"{path}: not {what} this version understands ({problem})") from problem
