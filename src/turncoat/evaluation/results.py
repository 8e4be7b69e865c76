"""What a study found, as plain values: the input of every report and the content of `results.json`.

A number that does not exist, such as the recall of a slice without fraud, is None.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from turncoat.errors import BundleError
from turncoat.evaluation.paper.joint_training import JointTraining
from turncoat.evaluation.paper.latent_map import LatentMap
from turncoat.evaluation.protocols import SplitProtocol
from turncoat.evaluation.summary import Interval, Summary
from turncoat.storage import replace_file

VERSION = 5
Kind = TypeVar("Kind")


@dataclass(frozen=True)
class MetricEstimate:
    """One metric of one candidate: mean over folds and seeds, 90 % bootstrap intervals of it."""

    value: float | None
    by_fold: tuple[float | None, ...]  # mean over seeds
    seed_std: float | None  # of the mean over folds; None with one seed
    transaction_interval: Interval | None  # transactions resampled
    customer_interval: Interval | None  # customers resampled


@dataclass(frozen=True)
class Curves:
    """Curves on the test rows of all folds together, first seed; thinned for plotting."""

    recall: tuple[float, ...]
    precision: tuple[float, ...]
    mean_score: tuple[float, ...]  # by bin of equal mass
    fraud_rate: tuple[float, ...]
    bin_rows: tuple[int, ...]


@dataclass(frozen=True)
class CandidateResult:
    """A column of scores, evaluated on the test rows, out of sample."""

    name: str  # unique and readable: "variational, anchored, corrected, filtered"
    family: str  # "champion", "hmm", "baseline", "hybrid", "ranker" or "calibrated"
    tier: str | None  # "baum-welch", "variational" or "neural"; None without an HMM
    supervision: str | None  # "none" or "anchored"; None without an HMM
    mode: str | None  # "filtered" or "smoothed"; None without an HMM
    kind: str  # "corrected", "raw", "probability" or "anomaly"
    is_probability: bool  # calibration metrics mean something only if it is
    metrics: dict[str, MetricEstimate]  # by name, see `metrics.METRICS`
    curves: Curves
    note: str = ""


@dataclass(frozen=True)
class Comparison:
    """First candidate minus second on the same resamples."""

    first: str
    second: str
    metric: str
    difference: float
    transaction_interval: Interval
    customer_interval: Interval
    wilcoxon_p: float | None  # paired over transactions; None for metrics without a loss per row
    topic: str = ""  # names the question of a headline comparison, see `evaluator.COMPARISONS`


@dataclass(frozen=True)
class SliceRow:
    """Metrics of one candidate on some of the test rows."""

    label: str  # "first", "2nd to 4th", "scenario 2"
    n_rows: int
    n_frauds: int
    metrics: dict[str, float | None]


@dataclass(frozen=True)
class SliceTable:
    """One candidate over slices of the test rows."""

    title: str  # "by length of history" or "by scenario"
    candidate: str
    rows: tuple[SliceRow, ...]


@dataclass(frozen=True)
class OrderRow:
    """One number of states in a sweep, measured on the selection part."""

    n_states: int
    criteria: dict[str, float]  # "bic", "elbo", "held_out"
    occupancy: float
    fraud_rate: float
    enrichment: float | None
    eligible: bool
    kept: bool
    reason: str


@dataclass(frozen=True)
class OrderSelection:
    """How the number of states of a tier was chosen."""

    tier: str
    features: str  # "engineered" or "processed"
    measured_on: str  # "selection part (held out), filtered"
    base_rate: float
    orders: tuple[OrderRow, ...]
    criterion: str | None
    by_criterion: int | None  # None without a criterion that all orders have
    by_eligibility: int | None
    used: int  # the number of states of the candidates
    chosen_by: str  # "given", "eligibility" or "fallback"
    sensitivity: tuple[dict[str, float | None], ...]  # min_occupancy, min_gain, n_states
    stability: tuple[dict[str, float | None], ...]  # shares of resamples, by n_states
    is_used: bool = True  # False for a latent width that was swept and not chosen


@dataclass(frozen=True)
class RegimeTrait:
    """A feature that sets a regime apart from all transactions."""

    feature: str
    value: float  # mean in standard deviations from the overall mean, or share of a category
    category: str | None = None
    overall: float | None = None  # the category's share of all transactions


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
    traits: tuple[RegimeTrait, ...]  # strongest first


@dataclass(frozen=True)
class RegimeTable:
    """The regimes of one fitted detector."""

    detector: str  # such as "variational"
    measured_on: str  # "calibration part, filtered, held out"
    fraud_regime: int
    temperature: float
    temporal_share: float
    misread_share: float  # MRIE
    signed_gap: float
    saturation: float  # share of test rows with a belief above 0.999 in one regime
    rows: tuple[RegimeRow, ...]
    transition_matrix: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class TierRow:
    """A detector's fraud regime on test rows, filtered; 90 % bootstrap intervals over customers."""

    name: str  # such as "neural, anchored"
    candidate: str  # its corrected, filtered scores
    n_states: int
    chosen_by: str  # how `n_states` was: "given", "eligibility" or "fallback"
    latent_dim: int | None  # None without an encoder
    occupancy: float  # share of the transactions
    fraud_rate: float | None
    fraud_captured: float | None  # share of all frauds
    enrichment: float | None
    occupancy_interval: Interval
    fraud_rate_interval: Interval | None
    fraud_captured_interval: Interval | None
    enrichment_interval: Interval | None


@dataclass(frozen=True)
class ChainRow:
    """A chain that was tried for a champion, and its average precision on the selection part."""

    n_features: int
    n_states: int
    n_fraud_states: int
    seed: int
    average_precision: float


@dataclass(frozen=True)
class KindRow:
    """A kind of score that was tried for a champion, measured on the selection part."""

    kind: str  # of a detector
    chain: str  # what its chain sees: "selected features" or "all features"
    average_precision: float
    shortfall: float  # from the best kind
    standard_error: float  # of the shortfall, by customer
    excess_loss: float  # log loss above that of the kind with the least
    loss_error: float  # standard error of the excess, by customer
    is_chosen: bool


@dataclass(frozen=True)
class ChampionChoice:
    """The detector that was chosen on a fold, and what was tried (`evaluation/champion.py`)."""

    n_states: int
    n_fraud_states: int
    evidence_weights: dict[str, float]  # by feature, largest first; empty if none were learnt
    chains: tuple[ChainRow, ...]
    kinds: tuple[KindRow, ...]  # the simplest first

    @property
    def chosen(self) -> KindRow:
        """The chosen kind."""
        return next(one for one in self.kinds if one.is_chosen)


@dataclass(frozen=True)
class FoldChampion:
    """The champion of one fold and seed."""

    fold: int  # counted from 1
    seed: int
    choice: ChampionChoice


@dataclass(frozen=True)
class PieceWorth:
    """What a piece of the two-sided chains is worth on test rows (`evaluation/pieces.py`).

    A difference is the metric of all pieces minus that of chains without this one.
    """

    piece: str  # a field of `ChainPieces`
    is_used: bool  # False if the fitted chains do not have it: there is nothing to leave out
    values: dict[str, float | None]  # metrics of the chains without it
    differences: dict[str, float]  # by metric
    intervals: dict[str, Interval]  # of the differences, by metric; customers resampled


@dataclass(frozen=True)
class PieceTable:
    """Two-sided chains with all pieces, and without each; all folds, first seed."""

    values: dict[str, float | None]  # metrics of chains with all pieces
    pieces: tuple[PieceWorth, ...]


@dataclass(frozen=True)
class EncoderTraining:
    """Losses of an encoder's training, first fold and seed; validation customers are held out."""

    detector: str  # such as "neural"
    latent_dim: int
    train_losses: tuple[float, ...]  # after each epoch
    validation_losses: tuple[float, ...]
    best_epoch: int  # counted from 1; its weights are kept
    stopped_early: bool
    class_weight: float  # of a fraud row


@dataclass(frozen=True)
class PublishedResult:
    """A row of a published table."""

    name: str
    source: str
    metrics: dict[str, float]


@dataclass(frozen=True)
class SplitPart:
    """Size of a part: rows and frauds over all folds, customers of the fold with most."""

    part: str
    n_rows: int
    n_customers: int
    n_frauds: int
    n_unlabelled: int = 0  # rows of unknown label: history only


@dataclass(frozen=True)
class DataSummary:
    """The data of a study."""

    source: str
    schema: str
    n_transactions: int
    n_customers: int
    fraud_rate: float
    n_days: int


@dataclass(frozen=True)
class StudyWarning:
    """A reason to distrust some results: `code` names it, `values` holds its numbers."""

    code: str
    subject: str  # a part, a candidate or a detector
    values: dict[str, float]


@dataclass(frozen=True)
class Results:
    """Everything that a report shows."""

    protocol: SplitProtocol
    preset: str
    data: DataSummary | None
    parts: tuple[SplitPart, ...]
    n_folds: int
    seeds: tuple[int, ...]
    hmm_features: tuple[str, ...] | None  # None if the HMMs had all features
    candidates: tuple[CandidateResult, ...]
    scoring_variants: tuple[str, ...]  # candidates that differ in score and inference only
    comparisons: tuple[Comparison, ...]
    slices: tuple[SliceTable, ...]
    selections: tuple[OrderSelection, ...]
    regimes: tuple[RegimeTable, ...]
    published: tuple[PublishedResult, ...]
    warnings: tuple[StudyWarning, ...]
    tiers: tuple[TierRow, ...] = ()
    encoder_trainings: tuple[EncoderTraining, ...] = ()
    latent_maps: tuple[LatentMap, ...] = ()
    joint_training: JointTraining | None = None
    champions: tuple[FoldChampion, ...] = ()  # by fold, then by seed
    # How the champion does against XGBoost, by the rule of `turncoat fit`: "better", "worse",
    # "as good" or "no better than chance"; empty if it cannot be said.
    verdict: str = ""
    pieces: PieceTable | None = None  # None if no champion considered two-sided chains
    summary: Summary | None = None  # what the first screen shows
    counterparties: tuple[str, ...] = ()  # columns of the schema
    version: int = VERSION


_HANDBOOK = (
    "Fraud Detection Handbook, published table "
    "(train 7 days, delay 7, test 7, known compromised cards removed)"
)
PUBLISHED = {  # by protocol
    "handbook": tuple(
        PublishedResult(
            name, _HANDBOOK, {"auroc": auroc, "average_precision": ap, "card_precision_100": cards}
        )
        for name, auroc, ap, cards in (
            ("XGBoost", 0.869, 0.687, 0.303),
            ("random forest", 0.870, 0.678, 0.299),
            ("LSTM", 0.876, 0.665, 0.297),
            ("Isolation Forest", 0.808, 0.164, 0.190),
        )
    )
}


def save_results(results: Results | JointTraining | PieceTable, path: Path) -> None:
    """Write results, or a part of them, as JSON; the file is replaced atomically."""
    replace_file(path, msgspec.json.format(msgspec.json.encode(results), indent=1))


def load_results(path: Path) -> Results:
    """Read `results.json`."""
    return _load(path, Results, "results", "Give the folder of a finished `turncoat compare`")


def load_joint_training(path: Path) -> JointTraining:
    """Read a joint training that was saved on its own."""
    remedy = "Run `turncoat compare --ablation joint` again"
    return _load(path, JointTraining, "a joint training", remedy)


def load_pieces(path: Path) -> PieceTable:
    """Read what the pieces of the chains are worth, saved on its own."""
    return _load(path, PieceTable, "a table of pieces", "Run `turncoat compare` again")


def load_choice(path: Path) -> ChampionChoice:
    """Read what was chosen as the champion of a fold."""
    remedy = "Run `turncoat compare` again"
    return _load(path, ChampionChoice, "the choice of a champion", remedy)


def _load(path: Path, kind: type[Kind], what: str, remedy: str) -> Kind:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except OSError as problem:
        raise BundleError(f"{path}: cannot be read ({problem.strerror}). {remedy}") from problem
    except msgspec.MsgspecError as problem:
        raise BundleError(f"{path}: not {what} this version can read ({problem})") from problem
