"""The study: fits every candidate on every fold and seed, and resumes where it was stopped.

A run's folder holds `study.json` (data and settings), `sweeps/`, `fits/` (scores and models), and
in the end the results and `manifest.json`.
"""

from __future__ import annotations

import contextlib
import json
import platform
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from rich.console import Console

import turncoat
from turncoat.arrays import Array
from turncoat.data.splits import DAY, Split, drop_short_sequences, split_automatically
from turncoat.data.transactions import Transactions
from turncoat.errors import BundleError, ConfigError
from turncoat.evaluation import candidates as make
from turncoat.evaluation.candidates import Candidate, CandidateScores, ScoreColumn
from turncoat.evaluation.paper.joint_training import JointTraining, train_jointly_from_all_starts
from turncoat.evaluation.pieces import measure_pieces
from turncoat.evaluation.protocols import Fold
from turncoat.evaluation.results import PieceTable, load_joint_training, load_pieces, save_results
from turncoat.evaluation.settings import NEURAL, StudySettings
from turncoat.evaluation.summary import Costs
from turncoat.features.split_panels import build_fit_panel
from turncoat.models.boosting import BoostedTrees
from turncoat.models.neural.encoder import Encoder, split_training_rows
from turncoat.panel import Panel
from turncoat.scoring import Detector
from turncoat.scoring.detector import CHAIN_KINDS
from turncoat.selection import Stability, Sweep, choose_width, sweep, sweep_widths
from turncoat.storage import BundleFormat, check_writable, digest, replace_file

FIT = BundleFormat("fit", version=1)
PACKAGES: tuple[str, ...] = ("turncoat", "numpy", "numba", "scipy", "scikit-learn", "polars")
PACKAGES += ("xgboost-cpu", "xgboost", "optuna", "venn-abers")
STUDY_FILE, _JOINT_FILE, _PIECES_FILE = "study.json", "joint.json", "pieces.json"
_ANNOUNCE_EVERY = 10  # trials of XGBoost


@dataclass(frozen=True, eq=False)
class CandidateFit:
    """A candidate's scores on one fold with one seed."""

    candidate: Candidate
    outcome: CandidateScores
    folder: Path

    @property
    def detector(self) -> Detector:
        """The fitted detector, from disk."""
        return make.load_detector(self.folder)


class StateCounts(NamedTuple):
    """The number of states of every tier, chosen on the first fold."""

    sweeps: Mapping[str, Sweep]  # by title (tier and width); empty if the states were given
    stabilities: Mapping[str, Stability]
    n_states: Mapping[str, int]  # by tier
    chosen_by: Mapping[str, str]  # by tier: "given", "eligibility" or "fallback"
    latent_dim: int | None  # of the neural tier


@dataclass(frozen=True, eq=False)
class Study:
    """Everything that was fitted."""

    settings: StudySettings
    transactions: Transactions
    folds: tuple[Fold, ...]
    states: StateCounts
    fits: Mapping[tuple[int, int], Mapping[str, CandidateFit]]  # by fold and seed, then by key
    joint_training: JointTraining | None  # on the first fold, if it was asked for
    pieces: PieceTable | None  # if the champions considered two-sided chains
    fingerprint: str

    @property
    def first_fits(self) -> Mapping[str, CandidateFit]:
        """The fits of the first fold and seed by key."""
        return self.fits[0, self.settings.seeds[0]]

    @property
    def columns(self) -> tuple[ScoreColumn, ...]:
        """Every column of scores."""
        return tuple(one for fit in self.first_fits.values() for one in fit.candidate.columns)

    @property
    def champion(self) -> Detector | None:
        """The champion of the last fold and the first seed, from disk; None without one."""
        fits = self.fits[len(self.folds) - 1, self.settings.seeds[0]]
        return fits[make.CHAMPION].detector if make.CHAMPION in fits else None

    def refit(self, detector: Detector) -> Detector:
        """A detector with the same choices, fitted to all but the test part of the last fold."""
        delay_s = self.settings.protocol.label_delay_days * DAY
        known = self.transactions.take(self.folds[-1].rows_without_test(delay_s))
        rows = known.customer_codes, known.times, known.labels
        split = split_automatically(*rows, test=0.0, seed=self.settings.seeds[0])
        return detector.refit(known, split)

    def scores(self, fold: int, seed: int, name: str) -> dict[str, Array]:
        """A column of scores, by part."""
        fits = self.fits[fold, seed].values()
        return next(fit.outcome.scores[name] for fit in fits if name in fit.outcome.scores)


def run_study(
    transactions: Transactions,
    settings: StudySettings,
    folder: Path,
    console: Console | None = None,
) -> Study:
    """Fit everything that an earlier run of the same study has not left in the folder."""
    console = console or Console(stderr=True)
    transactions.require_labels("a comparison")
    settings.check()
    splits = settings.protocol.splits(transactions)
    for split in splits:
        for part, rows in split.parts.items():
            transactions.take(rows).require_labels(f"a comparison ({split.name})", part)
    # Refuse unusable features and splits before the folder is made.
    settings.make_features("variational").fit(transactions.take(splits[0].fit))
    for split in splits if NEURAL in settings.tiers else ():
        _check_encoder_rows(transactions, split)
    fingerprint = fingerprint_data(transactions)
    _open_folder(folder, settings, fingerprint)
    states = _choose_states(transactions, splits[0], settings, folder, console)
    widths = settings.latent_dims if states.latent_dim is None else (states.latent_dim,)
    chosen = replace(settings, latent_dims=widths)
    candidates = _make_candidates(chosen, states.n_states, console)
    progress = _Progress(console, len(splits) * len(settings.seeds) * len(candidates))
    folds, fits = [], {}
    for f, split in enumerate(splits):
        fold = Fold.fit(transactions, split, settings.make_features())
        folds.append(fold)
        for seed in settings.seeds:
            found: dict[str, CandidateFit] = {}
            for one in candidates:
                place = folder / "fits" / f"fold-{f + 1}-seed-{seed}" / one.key
                outcome = _load_fit(one, place)
                if outcome is None:
                    needed = {key: found[key].folder for key in one.needs}
                    with progress.fitting(f"{one.key}, fold {f + 1} of {len(splits)}, seed {seed}"):
                        outcome = _fit_candidate(one, fold, seed, needed, place)
                progress.n_done += 1
                found[one.key] = CandidateFit(one, outcome, place)
            fits[f, seed] = found
    joint, first = None, settings.seeds[0]
    if "joint" in settings.ablations:
        detector = fits[0, first][NEURAL].detector
        joint = _train_jointly(detector, folds[0], chosen, folder / _JOINT_FILE, console)
    champions = [found.get(make.CHAMPION) for (_, seed), found in fits.items() if seed == first]
    pieces = _measure_pieces(folds, champions, chosen, folder / _PIECES_FILE, console)
    return Study(settings, transactions, tuple(folds), states, fits, joint, pieces, fingerprint)


def fingerprint_data(transactions: Transactions) -> str:
    """A digest of everything that is read of the data."""
    categories = transactions.categories
    names = {name: list(map(str, named.values)) for name, named in categories.items()}
    arrays = {
        "places": transactions.file_rows,
        "customers": transactions.customer_codes,
        "times": transactions.times,
        "labels": np.asarray(transactions.labels),
        **{f"number {name}": values for name, values in transactions.numbers.items()},
        **{f"name {name}": named.codes for name, named in categories.items()},
    }
    return digest([transactions.schema.to_dict(), names], arrays)


def build_manifest(
    study: Study, source: list[str], schema: str, scenario: str, costs: Costs | None = None
) -> dict[str, Any]:
    """Versions, data and settings: enough to repeat the run bit for bit."""
    packages = {}
    for name in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            packages[name] = version(name)
    return {
        "source": source,
        "schema": schema,
        "scenario": scenario,
        "data_fingerprint": study.fingerprint,
        "settings": study.settings.to_dict(),
        "costs": asdict(costs or Costs()),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "packages": packages,
    }


def load_manifest(path: Path) -> tuple[Mapping[str, Any], StudySettings]:
    """A manifest, and the settings in it."""
    needed = {"source", "schema", "scenario", "data_fingerprint", "settings"}
    try:
        manifest = json.loads(path.read_bytes())
        if missing := ", ".join(sorted(needed - set(manifest))):
            raise BundleError(f"{path}: not the manifest of a run: {missing} missing")
        return manifest, StudySettings.from_dict(manifest["settings"])
    except OSError as problem:
        remedy = "Give the manifest.json of a run"
        raise BundleError(f"{path}: cannot be read ({problem.strerror}). {remedy}") from problem
    except (ValueError, LookupError, TypeError) as problem:
        raise BundleError(f"{path}: not the manifest of a run") from problem


def _check_encoder_rows(transactions: Transactions, split: Split) -> None:
    """Refuse a fit part with too few customers to train and to validate an encoder."""
    customers = transactions.customer_codes[split.fit]
    kept = transactions.take(split.fit[drop_short_sequences(customers, np.arange(len(customers)))])
    zeros = np.zeros((kept.n_rows, 1), np.float32)
    panel = Panel.from_arrays(zeros, lengths=np.diff(kept.offsets), labels=kept.labels)
    split_training_rows(panel, Encoder().validation_fraction, 0)


def _open_folder(folder: Path, settings: StudySettings, fingerprint: str) -> None:
    """Make the run's folder, or check that it belongs to the same study."""
    plain = settings.to_dict()
    identity = {"turncoat": turncoat.__version__, "data": fingerprint, "settings": plain}
    path = folder / STUDY_FILE
    if path.exists():
        try:
            before = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
        except msgspec.MsgspecError as problem:
            raise BundleError(f"{path} describes no study. Choose another folder") from problem
        changed = ", ".join(name for name in identity if before.get(name) != identity[name])
        if changed:
            remedy = "Choose another folder, or remove it"
            raise ConfigError(f"{folder} holds another study: other {changed}. {remedy}")
        return
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BundleError(f"{folder} exists and holds no study. Choose another folder")
    check_writable(folder)
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(path, json.dumps(identity, indent=1).encode())


def _choose_states(
    data: Transactions, split: Split, settings: StudySettings, folder: Path, console: Console
) -> StateCounts:
    """The number of states of every tier, and the width of the neural one, on the first fold."""
    latent_dim = settings.latent_dims[0] if NEURAL in settings.tiers else None
    if isinstance(settings.states, int):
        n_states = dict.fromkeys(settings.tiers, settings.states)
        return StateCounts({}, {}, n_states, dict.fromkeys(n_states, "given"), latent_dim)
    sweeps, stabilities, n_states, chosen_by = {}, {}, {}, {}
    for tier in settings.tiers:
        widths = settings.latent_dims if tier == NEURAL else settings.latent_dims[:1]
        several = len(widths) > 1
        detail = f", {', '.join(map(str, widths))} latents" if several else ""
        console.print(f"choosing the number of regimes, {tier}{detail}", highlight=False)
        parts = {"model": settings.make_model(tier, 2), "features": settings.make_features(tier)}
        options: Any = {"orders": settings.orders, "folder": folder / "sweeps" / tier, **parts}
        if several:
            by_width = sweep_widths(data, split, widths=widths, progress=False, **options)
        else:
            by_width = {widths[0]: sweep(data, split, progress=False, **options)}
        for width, one in by_width.items():
            title = f"{tier}, {width} latents" if several else tier
            sweeps[title] = one
            if settings.n_stability:
                rows = data, split, settings.n_stability
                stabilities[title] = one.compute_stability(*rows, progress=False)
        choices = {width: one.choose() for width, one in by_width.items()}
        chosen = choose_width(choices)
        kept = None if chosen is None else choices[chosen].kept
        if kept is None:
            n_states[tier], chosen_by[tier] = settings.fallback_states, "fallback"
            continue
        n_states[tier], chosen_by[tier] = kept.n_states, "eligibility"
        latent_dim = chosen if tier == NEURAL else latent_dim
    return StateCounts(sweeps, stabilities, n_states, chosen_by, latent_dim)


def _make_candidates(
    settings: StudySettings, n_states: Mapping[str, int], console: Console
) -> list[Candidate]:
    """All candidates of a fold; each comes after those it needs."""

    def announce(done: int, total: int, best: float) -> None:
        if done % _ANNOUNCE_EVERY == 0 or done == total:
            text = f"  {done} of {total} trials of XGBoost, best average precision {best:.3f}"
            console.print(text, highlight=False)

    tier, found = settings.main_tier, []
    for key, title in settings.detectors.items():
        own, _, supervision = title.partition(", ")
        n_own, encoder_of = n_states[own], None
        if supervision:
            n_own = settings.anchored_states or max(n_own, settings.n_fraud_states + 1)
            encoder_of = NEURAL if own == NEURAL else None
        detector = settings.make_detector(own, n_own, supervision or "none")
        found.append(make.hmm_candidate(key, title, own, detector, encoder_of))
    if NEURAL in settings.tiers:
        key = "anchored" if tier == NEURAL else "neural-anchored"
        found.append(make.head_ranker_candidate(key, settings.detectors[key]))
    efforts: Any = {"n_trials": settings.n_trials, "search_rows": settings.search_rows}
    tune_xgboost = partial(BoostedTrees, announce=announce, **efforts)
    lstm, rows = settings.max_lstm_epochs, settings.search_rows
    baselines = make.baseline_candidates(lstm, rows, tune_xgboost)
    found += [baselines[name] for name in settings.baselines]
    if "xgboost" in settings.baselines:
        found.append(make.hybrid_candidate(tier, tier, tune_xgboost))
        found.append(make.ranker_candidate("anchored", settings.detectors["anchored"]))
        n_trials = max(settings.n_trials, 1)
        found.append(make.champion_candidate(settings.make_features(), n_trials))
    return found


def _train_jointly(
    detector: Detector, fold: Fold, settings: StudySettings, path: Path, console: Console
) -> JointTraining:
    """Joint training on the rows of the neural detector, from disk if it is finished."""
    with contextlib.suppress(BundleError):
        return load_joint_training(path)
    panel = build_fit_panel(detector.features_, fold.transactions, fold.split)
    n_states = detector.model_.n_states
    console.print("joint training, for comparison: an encoder, then three runs", highlight=False)
    with console.status("joint training, for comparison") as status:

        def announce(start: str, done: int, total: int) -> None:
            status.update(f"joint training {start}: cycle {done} of {total}")
            if done == total:
                console.print(f"  joint training {start}: {total} cycles", highlight=False)

        began = time.perf_counter()
        # The saved encoder is folded and cannot be trained on. With the same seed it is the same.
        trained = settings.make_model(NEURAL, n_states).train_encoder(panel)
        options = {"n_states": n_states, "cycles": settings.joint_cycles, "seed": settings.seeds[0]}
        found = train_jointly_from_all_starts(panel, trained, announce=announce, **options)
    elapsed_s = time.perf_counter() - began
    console.print(f"joint training, for comparison ({elapsed_s:.1f} s)", highlight=False)
    save_results(found, path)
    return found


def _measure_pieces(
    folds: Sequence[Fold],
    champions: Sequence[CandidateFit | None],
    settings: StudySettings,
    path: Path,
    console: Console,
) -> PieceTable | None:
    """What the chains' pieces are worth, from disk if it was measured.

    None if a fold has no champion, or one that did not consider chains.
    """
    detectors = []
    for fit in champions:
        if fit is None:
            return None
        kinds = {one.kind for one in make.load_champion_choice(fit.folder).kinds}
        if not kinds & set(CHAIN_KINDS):
            return None
        detectors.append(fit.detector)
    with contextlib.suppress(BundleError):
        return load_pieces(path)
    title, began = "what the pieces of the chains are worth", time.perf_counter()
    with console.status(title) as status:
        found = measure_pieces(
            folds,
            detectors,
            n_resamples=settings.n_resamples,
            seed=settings.seeds[0],
            announce=lambda text: status.update(f"{title}: {text}"),
        )
    console.print(f"{title} ({time.perf_counter() - began:.1f} s)", highlight=False)
    save_results(found, path)
    return found


def _fit_candidate(
    candidate: Candidate, fold: Fold, seed: int, folders: Mapping[str, Path], place: Path
) -> CandidateScores:
    place.mkdir(parents=True, exist_ok=True)
    for name in ("scores", "detector"):  # left by an unfinished or damaged fit
        shutil.rmtree(place / name, ignore_errors=True)
    outcome = candidate.fit(fold, seed, folders, place)
    columns = outcome.scores.items()
    arrays = {f"{part}/{name}": parts[part] for name, parts in columns for part in parts}
    FIT.save(place / "scores", {"figures": dict(outcome.figures)}, arrays)
    return outcome


def _load_fit(candidate: Candidate, place: Path) -> CandidateScores | None:
    """The scores of a finished candidate; None if it is unfinished or damaged."""
    try:
        content, arrays = FIT.load(place / "scores")
        if candidate.check is not None:
            candidate.check(place)
    except BundleError:
        return None
    scores: dict[str, dict[str, Array]] = {}
    for name, array in arrays.items():
        part, column = name.split("/", 1)
        scores.setdefault(column, {})[part] = array
    is_complete = set(scores) == {column.name for column in candidate.columns}
    return CandidateScores(scores, content["figures"]) if is_complete else None


class _Progress:
    """Prints which fit runs, and how long the rest may take."""

    def __init__(self, console: Console, n_fits: int) -> None:
        self.console, self.n_fits = console, n_fits
        self.n_done = self.n_fresh = 0
        self.began = time.perf_counter()

    @contextmanager
    def fitting(self, name: str) -> Iterator[None]:
        start, text = time.perf_counter(), f"{self.n_done + 1} of {self.n_fits}: {name}"
        left_s = (start - self.began) / max(self.n_fresh, 1) * (self.n_fits - self.n_done)
        with self.console.status(text + (f", about {left_s:.0f} s left" if self.n_fresh else "")):
            yield
        self.n_fresh += 1
        elapsed_s = time.perf_counter() - start
        self.console.print(f"{text} ({elapsed_s:.1f} s)", highlight=False, soft_wrap=True)
