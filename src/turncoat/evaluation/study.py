"""The study: every candidate on every fold and seed, finished ones kept on disk, so that a stopped study goes on where it was.

A run's folder holds `study.json` (what it is a study of), `sweeps/`, `fits/` (scores and models), and in the end the results.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

import turncoat
from turncoat.arrays import Array
from turncoat.data.splits import Split, drop_short_sequences
from turncoat.data.transactions import Transactions
from turncoat.errors import BundleError, ConfigError
from turncoat.evaluation import candidates
from turncoat.evaluation.ablation import joint_ablation
from turncoat.evaluation.candidates import Candidate, CandidateScores, ScoreColumn
from turncoat.evaluation.folds import Fold
from turncoat.evaluation.results import JointAblation, load_ablation, save_results
from turncoat.evaluation.settings import (
    NEURAL,
    NEURAL_ANCHORED,
    StudySettings,
    check_settings,
    plain_settings,
)
from turncoat.features.split_panels import build_fit_panel
from turncoat.models.neural.encoder import Encoder, split_training_rows
from turncoat.panel import Panel
from turncoat.scoring import Detector, load
from turncoat.selection import Stability, Sweep, choose_width, sweep, sweep_widths
from turncoat.storage import BundleFormat, check_writable, digest, replace_file

FIT = BundleFormat("fit", version=1)
_IDENTITY, _JOINT = "study.json", "joint.json"
_TRIALS_TOLD = 10


@dataclass(frozen=True, eq=False)
class Fitted:
    """A candidate's scores on one fold with one seed."""

    candidate: Candidate
    outcome: CandidateScores
    folder: Path


@dataclass(frozen=True, eq=False)
class Study:
    """All that was fitted: what figures are made of."""

    settings: StudySettings
    transactions: Transactions
    folds: tuple[Fold, ...]
    sweeps: Mapping[
        str, Sweep
    ]  # by title (a tier, and a width of several), on the first fold; empty where the states were given
    stabilities: Mapping[str, Stability]
    states: Mapping[str, int]  # by tier
    latent_dim: int | None  # of the neural tier
    why: Mapping[str, str]  # of the number of states, by tier
    fits: Mapping[tuple[int, int], Mapping[str, Fitted]]  # by fold and seed, then by key
    joint: JointAblation | None  # on the first fold, where it was asked for
    fingerprint: str

    @property
    def columns(self) -> tuple[ScoreColumn, ...]:
        """Every column of scores that candidates left."""
        return tuple(
            column
            for fitted in self.fits[0, self.settings.seeds[0]].values()
            for column in fitted.candidate.columns
        )

    def scores(self, fold: int, seed: int, name: str) -> dict[str, Array]:
        """A column of scores, by part."""
        return next(
            one.outcome.scores[name]
            for one in self.fits[fold, seed].values()
            if name in one.outcome.scores
        )


def run_study(
    transactions: Transactions,
    settings: StudySettings,
    folder: Path,
    console: Console | None = None,
) -> Study:
    """Fit everything that is not yet in the folder, which may hold an earlier, unfinished run of the same study."""
    told = Console(stderr=True) if console is None else console
    transactions.require_labels("a comparison")
    check_settings(settings)
    splits = settings.protocol.splits(transactions)
    settings.features(settings.include).fit(
        transactions.take(splits[0].fit)
    )  # refused now rather than in a folder begun
    for split in splits if NEURAL in settings.tiers else ():
        _check_encoder_rows(transactions, split)
    fingerprint = data_fingerprint(transactions)
    _open(folder, settings, fingerprint)
    sweeps, stabilities, states, why, latent_dim = _chosen(
        transactions, splits[0], settings, folder, told
    )
    settled = settings if latent_dim is None else replace(settings, latent_dims=(latent_dim,))
    candidates = _candidates(settled, states, told)
    total = len(splits) * len(settings.seeds) * len(candidates)
    folds, fits, began, fresh, done = [], {}, time.perf_counter(), 0, 0
    for f, split in enumerate(splits):
        fold = Fold.of(transactions, split, settings.features())
        folds.append(fold)
        for seed in settings.seeds:
            found: dict[str, Fitted] = {}
            for candidate in candidates:
                place = folder / "fits" / f"fold-{f + 1}-seed-{seed}" / candidate.key
                outcome = _finished(candidate, place)
                if outcome is None:
                    with _announced(
                        told,
                        f"{candidate.key}, fold {f + 1} of {len(splits)}, seed {seed}",
                        done,
                        total,
                        began,
                        fresh,
                    ):
                        outcome = _fit(
                            candidate,
                            fold,
                            seed,
                            {key: found[key].folder for key in candidate.needs},
                            place,
                        )
                    fresh += 1
                done += 1
                found[candidate.key] = Fitted(candidate, outcome, place)
            fits[f, seed] = found
    joint = None
    if "joint" in settings.ablations:
        detector = load(fits[0, settings.seeds[0]][NEURAL].folder / "detector")
        joint = _joint(detector, folds[0], settled, folder / _JOINT, told)
    return Study(
        settings,
        transactions,
        tuple(folds),
        sweeps,
        stabilities,
        states,
        latent_dim,
        why,
        fits,
        joint,
        fingerprint,
    )


def data_fingerprint(transactions: Transactions) -> str:
    """A digest of everything that is read of the data."""
    names = {name: list(map(str, named.values)) for name, named in transactions.categories.items()}
    arrays = {
        "places": transactions.file_rows,
        "customers": transactions.customer_codes,
        "times": transactions.times,
        "labels": np.asarray(transactions.labels),
        **{f"number {name}": values for name, values in transactions.numbers.items()},
        **{f"name {name}": named.codes for name, named in transactions.categories.items()},
    }
    return digest([transactions.schema.to_dict(), names], arrays)


def _check_encoder_rows(transactions: Transactions, split: Split) -> None:
    """Refuse a fit part whose customers cannot both train an encoder and tell it when to stop."""
    rows = split.fit[
        drop_short_sequences(transactions.customer_codes[split.fit], np.arange(len(split.fit)))
    ]
    kept = transactions.take(rows)
    bare = Panel.from_arrays(
        np.zeros((kept.n_rows, 1), np.float32), lengths=np.diff(kept.offsets), labels=kept.labels
    )
    split_training_rows(bare, Encoder().validation_fraction, 0)


def _open(folder: Path, settings: StudySettings, fingerprint: str) -> None:
    """Make the run's folder, or check that it is of the same study."""
    identity = {
        "turncoat": turncoat.__version__,
        "data": fingerprint,
        "settings": plain_settings(settings),
    }
    path = folder / _IDENTITY
    if path.exists():
        try:
            before = json.loads(path.read_bytes())
        except ValueError as problem:
            raise BundleError(f"{path} cannot be read. Choose another folder") from problem
        if not isinstance(before, dict):
            raise BundleError(f"{path} does not describe a study. Choose another folder")
        changed = [name for name in identity if before.get(name) != identity[name]]
        if changed:
            raise ConfigError(
                f"{folder} holds another study: other {', '.join(changed)}. Choose another folder, or remove it"
            )
        return
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BundleError(f"{folder} exists and holds no study. Choose another folder")
    check_writable(folder)
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(path, json.dumps(identity, indent=1).encode())


def _chosen(
    transactions: Transactions,
    split: Split,
    settings: StudySettings,
    folder: Path,
    console: Console,
) -> tuple[dict[str, Sweep], dict[str, Stability], dict[str, int], dict[str, str], int | None]:
    """The number of states of every tier, and the width of the neural one, on the first fold."""
    sweeps, stabilities, states, why = {}, {}, {}, {}
    latent_dim = settings.latent_dims[0] if NEURAL in settings.tiers else None
    for tier in settings.tiers:
        if isinstance(settings.states, int):
            states[tier], why[tier] = settings.states, "given"
            continue
        widths = settings.latent_dims if tier == NEURAL else settings.latent_dims[:1]
        several = len(widths) > 1
        console.print(
            f"choosing the number of regimes, {tier}"
            + (f", {', '.join(map(str, widths))} latents" if several else ""),
            highlight=False,
        )
        how: dict[str, Any] = {
            "model": settings.model(tier, 2),
            "features": settings.features_of(tier),
            "orders": settings.orders,
            "folder": folder / "sweeps" / tier,
            "progress": False,
        }
        made = (
            sweep_widths(transactions, split, widths=widths, **how)
            if several
            else {widths[0]: sweep(transactions, split, **how)}
        )
        for width, one in made.items():
            title = f"{tier}, {width} latents" if several else tier
            sweeps[title] = one
            if settings.n_stability:
                stabilities[title] = one.compute_stability(
                    transactions, split, settings.n_stability, progress=False
                )
        choices = {width: one.choose() for width, one in made.items()}
        chosen = choose_width(choices)
        kept = None if chosen is None else choices[chosen].kept
        if kept is None:
            states[tier], why[tier] = (
                settings.fallback_states,
                f"no order is eligible, so {settings.fallback_states} as a fallback",
            )
            continue
        states[tier], why[tier] = (
            kept.n_states,
            "by eligibility" + (f", {chosen} latents" if several else ""),
        )
        latent_dim = chosen if tier == NEURAL else latent_dim
    return sweeps, stabilities, states, why, latent_dim


def _candidates(
    settings: StudySettings, states: Mapping[str, int], console: Console
) -> list[Candidate]:
    """Everything that is fitted on a fold, in an order that gives each what it needs."""

    def announce(done: int, total: int, best: float) -> None:
        if done % _TRIALS_TOLD == 0 or done == total:
            console.print(
                f"  {done} of {total} trials of XGBoost, best average precision {best:.3f}",
                highlight=False,
            )

    found = [
        candidates.hmm(tier, tier, tier, settings.detector(tier, states[tier]))
        for tier in settings.tiers
    ]
    tier = settings.main_tier
    n_anchored = settings.anchored_states or max(states[tier], settings.n_fraud_states + 1)
    encoder_of = NEURAL if tier == NEURAL else None
    found.append(
        candidates.hmm(
            "anchored",
            f"{tier}, anchored",
            tier,
            settings.detector(tier, n_anchored, "anchored"),
            encoder_of,
        )
    )
    if NEURAL in settings.tiers and tier != NEURAL:
        n_neural = settings.anchored_states or max(states[NEURAL], settings.n_fraud_states + 1)
        title, anchored = f"{NEURAL}, anchored", settings.detector(NEURAL, n_neural, "anchored")
        found.append(candidates.hmm(NEURAL_ANCHORED, title, NEURAL, anchored, encoder_of=NEURAL))
    if NEURAL in settings.tiers:
        found.append(
            candidates.head_ranker(
                NEURAL_ANCHORED if tier != NEURAL else "anchored", f"{NEURAL}, anchored"
            )
        )
    baselines = {
        "logistic": candidates.logistic(settings.search_rows),
        "isolation-forest": candidates.isolation_forest(),
        "xgboost": candidates.xgboost(settings.n_trials, settings.search_rows, announce),
        "lstm": candidates.lstm(settings.lstm_epochs),
    }
    found += [baselines[name] for name in settings.baselines]
    if "xgboost" in settings.baselines:
        found += [candidates.hybrid(tier, tier), candidates.ranker("anchored", f"{tier}, anchored")]
    return found


def _joint(
    detector: Detector, fold: Fold, settings: StudySettings, path: Path, console: Console
) -> JointAblation:
    """Joint training on the rows that the neural detector was fitted to, from disk where it is finished.

    The encoder is trained again, as the one that was folded cannot be trained on: with the same rows and seed it is the same.
    """
    with contextlib.suppress(BundleError):
        return load_ablation(path)
    panel = build_fit_panel(detector.features_, fold.transactions, fold.split)
    n_states = detector.model_.n_states
    model = settings.model(NEURAL, n_states)
    console.print("joint training, for comparison: an encoder, then three runs", highlight=False)
    with console.status("joint training, for comparison") as status:

        def announce(start: str, done: int, total: int) -> None:
            status.update(f"joint training {start}: cycle {done} of {total}")
            if done == total:
                console.print(f"  joint training {start}: {total} cycles", highlight=False)

        began = time.perf_counter()
        trained = model.train_encoder(panel)
        found = joint_ablation(
            panel,
            trained,
            n_states=n_states,
            cycles=settings.joint_cycles,
            seed=settings.seeds[0],
            announce=announce,
        )
    console.print(
        f"joint training, for comparison ({time.perf_counter() - began:.1f} s)", highlight=False
    )
    save_results(found, path)
    return found


def _fit(
    candidate: Candidate, fold: Fold, seed: int, folders: Mapping[str, Path], place: Path
) -> CandidateScores:
    place.mkdir(parents=True, exist_ok=True)
    for name in ("scores", "detector"):  # of a fit that is not finished or damaged
        shutil.rmtree(place / name, ignore_errors=True)
    outcome = candidate.fit(fold, seed, folders, place)
    arrays = {
        f"{part}/{name}": scores
        for name, parts in outcome.scores.items()
        for part, scores in parts.items()
    }
    FIT.save(place / "scores", {"figures": dict(outcome.figures)}, arrays)
    return outcome


def _finished(candidate: Candidate, place: Path) -> CandidateScores | None:
    """What a finished candidate left; None if it is not finished or damaged."""
    try:
        content, arrays = FIT.load(place / "scores")
        candidate.check(place)
    except BundleError:
        return None
    scores: dict[str, dict[str, Array]] = {}
    for name, array in arrays.items():
        part, column = name.split("/", 1)
        scores.setdefault(column, {})[part] = array
    whole = set(scores) == {column.name for column in candidate.columns}
    return CandidateScores(scores, content["figures"]) if whole else None


@contextmanager
def _announced(
    console: Console, what: str, done: int, total: int, began: float, fresh: int
) -> Iterator[None]:
    """Say what is being fitted and how long the rest may take."""
    left = (
        f", about {(time.perf_counter() - began) / fresh * (total - done):.0f} s left"
        if fresh
        else ""
    )
    with console.status(f"{done + 1} of {total}: {what}{left}"):
        start = time.perf_counter()
        yield
    console.print(
        f"{done + 1} of {total}: {what} ({time.perf_counter() - start:.1f} s)",
        highlight=False,
        soft_wrap=True,
    )
