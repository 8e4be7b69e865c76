"""Sentences about results: summary, headlines, warnings, errata."""

from __future__ import annotations

from collections.abc import Iterator

from turncoat.evaluation.metrics import METRICS
from turncoat.evaluation.protocols import SplitProtocol
from turncoat.evaluation.results import (
    CandidateResult,
    ChampionChoice,
    Comparison,
    RegimeTrait,
    Results,
)
from turncoat.reporting import formatting as show

TOPICS = {
    "champion": "Champion vs. XGBoost",
    "champion_logistic": "Champion vs. logistic regression",
    "regimes": "Regimes alone vs. XGBoost",
    "regimes_logistic": "Regimes alone vs. logistic regression",
    "hybrid": "Hybrid vs. XGBoost on the same features",
    "ranker": "XGBoost inside the regimes vs. isotonic calibration",
    "ranker_calibration": "Calibration error of XGBoost inside the regimes vs. isotonic",
    "anchoring": "Regimes fitted with labels vs. without",
    "unsupervised": "Regimes without labels vs. Isolation Forest",
    "smoothing": "Scores with hindsight vs. scores at the time",
    "encoder": "Neural regimes vs. regimes without an encoder",
    "neural_regimes": "Neural regimes vs. the encoder's own head",
    "head_ranker": "The head inside the regimes vs. the head alone",
    "head_calibration": "The head inside the regimes vs. its isotonic calibration",
}
_WARNINGS = {
    "few_frauds": "The {subject} part has only {n_frauds:.0f} frauds{fold}: metrics are rough.",
    "saturated": "{subject}: {saturation:.0%} of test beliefs are above 0.999. The posteriors are "
    "saturated; try fewer features or temperature auto.",
    "miscalibrated": "Not calibrated, by equal-mass ECE at a fraud rate of {fraud_rate:.4f}: "
    "{shown}.",
    "no_sequence": "{subject}: temporal share {temporal_share:.2%}. The sequence adds almost "
    "nothing.",
    "no_eligible_order": "{subject}: no number of regimes is eligible; {n_states:.0f} were used.",
    "unstable_order": "{subject}: K = {n_states:.0f} is not stable: only {share:.0%} of the "
    "resamples of customers chose it.",
    "different_rows": "The paper's protocol does not compare on the same rows: it evaluates its "
    "models on customers with 5 transactions or more.",
}
CHOSEN_BY = {  # how a number of states was chosen
    "given": "given",
    "eligibility": "chosen by eligibility",
    "fallback": "the fallback, because no number is eligible",
}
_KINDS = {
    "regimes": "the fraud rates of its regimes alone",
    "chains": "the causes of fraud (intruder, compromised counterparty, the transaction by "
    "itself), calibrated inside its regimes",
    "ranker": "boosted trees on the features, calibrated inside its regimes",
    "hybrid": "boosted trees that see the customer's path too, calibrated inside its regimes",
    "chains+trees": "the causes of fraud, corrected by boosted trees and calibrated inside its "
    "regimes",
}
_VERDICTS = {
    "better": "better than XGBoost",
    "worse": "worse than XGBoost",
    "as good": "as good as XGBoost",
}
_MAX_WEIGHTS = 8  # of a sentence
_SUMMARY_METRICS = {
    "average_precision": ("average precision", 3),
    "auroc": ("AUROC", 3),
    "ece_mass": ("equal-mass ECE", 4),
}


def title_results(results: Results) -> str:
    """The title of a report."""
    return f"{results.data.schema if results.data else 'Study'}: {results.protocol.name} comparison"


def describe_split(protocol: SplitProtocol) -> str:
    """How the parts were made."""
    delay = f"{protocol.label_delay_days:g} days"
    if protocol.name in ("matched", "paper"):
        return f"Customers are split at random (seed {protocol.seed}); each is in one part only."
    if protocol.name == "chronological":
        return f"Parts follow each other in time, with a label delay of {delay} between them."
    cards = "Cards known to be compromised are left out."
    cards = cards if protocol.drop_compromised else "All cards are kept."
    train = f"{protocol.train_days:g} days of training"
    weeks = f"Prequential: {protocol.n_folds} test weeks, each after {train}"
    last = "the last two weeks for selection and calibration"
    return f"{weeks} ({last}) and a label delay of {delay}. {cards}"


def summarise(results: Results) -> tuple[str, ...]:
    """What was evaluated, on which rows and with which features."""
    test = next((part for part in results.parts if part.part == "test"), None)
    if test is None:
        return ()
    rows = "All models are evaluated on the same rows."
    if results.protocol.name == "paper":
        hmms = "hidden Markov models on customers with 5 transactions or more"
        rows = f"Baselines are evaluated on all of them, {hmms}."
    features = "Features use neither the row's own label nor the future."
    if results.hmm_features:
        features += f" The hidden Markov models have {show.join_words(results.hmm_features)}."
    held_out = f"{test.n_rows:,} held-out transactions, {test.n_frauds:,} of them fraud"
    if test.n_unlabelled:
        held_out += f" and {test.n_unlabelled:,} left out because their label is unknown"
    split = describe_split(results.protocol)
    return f"Evaluated on {held_out}. {split}", f"{rows} {features}"


def list_scores(results: Results) -> Iterator[str]:
    """The main metrics of the models one would use, a sentence each."""
    by_name = {one.name: one for one in results.candidates}
    tiers = [(row, by_name[row.candidate]) for row in results.tiers if row.candidate in by_name]
    for row, one in tiers:
        if one.supervision == "none":
            states = f"{row.n_states} regimes ({CHOSEN_BY.get(row.chosen_by, row.chosen_by)})"
            yield f"{row.name}, {states}: {_metrics_text(one)}."
    names = ["champion", *(row.candidate for row, one in tiers if one.supervision == "anchored")]
    names += ["regime-calibrated head", "LSTM", "XGBoost", "hybrid", "regime-calibrated XGBoost"]
    yield from (f"{name}: {_metrics_text(by_name[name])}." for name in names if name in by_name)


def describe_comparison(one: Comparison) -> str:
    """A headline comparison as a sentence."""
    return (
        f"{TOPICS.get(one.topic, one.topic)}: {describe_difference(one)} {_describe_interval(one)}."
    )


def describe_difference(one: Comparison) -> str:
    """How far the first candidate is above or below the second."""
    side = "level with"
    if one.difference:
        size = show.number(abs(one.difference), 4)
        side = f"{size} above" if one.difference > 0 else f"{size} below"
    return f"{one.first} is {side} {one.second}"


def describe_champions(results: Results) -> tuple[str, ...]:
    """What was chosen on each fold and why, and the verdict on it."""
    sentences = []
    for fold, seed, choice in ((c.fold, c.seed, c.choice) for c in results.champions):
        where = f", fold {fold}, seed {seed}" if len(results.champions) > 1 else ""
        kind = choice.chosen.kind
        about = f"Champion{where}: {kind}, scores by {_KINDS.get(kind, kind)}"
        sentences.append(f"{about}. {_describe_chain(choice)}")
    if results.champions:
        sentences.append(
            "The choice is made on the selection part: the simplest kind whose average precision "
            "and log loss are within one standard error of the best, by customer."
        )
    for one in (one for one in results.comparisons if one.topic == "champion"):
        verdict = _VERDICTS.get(results.verdict, results.verdict)
        difference = f"{describe_difference(one)} {_describe_interval(one)}"
        sentences.append(f"Verdict on test rows: {verdict}. The {difference}.")
    return tuple(sentences)


def _describe_interval(one: Comparison) -> str:
    """The metric of a difference and its interval, in brackets."""
    low, high = one.customer_interval
    zero = "excludes zero" if low > 0 or high < 0 else "includes zero"
    metric = METRICS[one.metric]
    better = "higher" if metric.higher_is_better else "lower"
    interval = f"90 % interval over customers {low:+.4f} to {high:+.4f}, {zero}"
    return f"({metric.title}, {better} is better; {interval})"


def _describe_chain(choice: ChampionChoice) -> str:
    """What the chain of a champion sees."""
    if not choice.n_fraud_states:
        chain = f"Its chain has {choice.n_states} regimes on {choice.chosen.chain}"
        return f"{chain}, fitted without labels."
    weights = list(choice.evidence_weights.items())
    shown = [f"{name} {show.number(weight, 2)}" for name, weight in weights[:_MAX_WEIGHTS]]
    shown += [f"{len(weights) - _MAX_WEIGHTS} more"] if len(weights) > _MAX_WEIGHTS else []
    states = f"{choice.n_states} regimes, {choice.n_fraud_states} of them for fraud"
    tried = "1 chain" if len(choice.chains) == 1 else f"{len(choice.chains)} chains"
    chain = f"Its chain has {states}, after a search of {tried}"
    return f"{chain}. Evidence weights: {show.join_words(shown)}."


def list_warnings(results: Results) -> tuple[str, ...]:
    """What to be careful about; miscalibrated candidates share one sentence."""
    fold = " in one fold" if results.n_folds > 1 else ""
    sentences, loose = [], [one for one in results.warnings if one.code == "miscalibrated"]
    for one in results.warnings:
        values = {"subject": one.subject, "fold": fold, **one.values}
        if one.code == "miscalibrated":
            values["shown"] = "; ".join(f"{o.subject} ({o.values['ece']:.4f})" for o in loose)
        if one.code != "miscalibrated" or one is loose[0]:
            sentences.append(_WARNINGS.get(one.code, "{subject}").format(**values))
    return tuple(sentences)


def list_errata(results: Results) -> tuple[str, ...]:
    """What the corrections to the paper (docs/errata.md) change here."""
    by_name = {one.name: one for one in results.candidates}

    def value(name: str, metric: str) -> float | None:
        estimate = by_name[name].metrics.get(metric) if name in by_name else None
        return None if estimate is None else estimate.value

    tiers = []
    for table in results.regimes:
        tier, raw = table.detector, by_name.get(f"{table.detector}, raw, filtered")
        if raw is not None and raw.supervision == "none":
            scores = ("in-sample rates", "corrected, filtered")
            losses = (value(f"{tier}, {score}", "log_loss") for score in scores)
            scores = ("corrected, smoothed", "corrected, filtered")
            precisions = (value(f"{tier}, {score}", "average_precision") for score in scores)
            tiers.append((table, *losses, *precisions))
    return tuple(show.render("errata.txt.jinja", tiers=tiers).splitlines())


def describe_trait(trait: RegimeTrait) -> str:
    """A feature that sets a regime apart."""
    if trait.category is not None:
        overall = "" if trait.overall is None else f" vs. {trait.overall:.0%} overall"
        return f"{trait.feature} is {trait.category}: {trait.value:.0%}{overall}"
    size = abs(trait.value)
    degree = "far " if size >= 2 else "" if size >= 1 else "somewhat "
    side = "above" if trait.value > 0 else "below"
    return f"{trait.feature}: {degree}{side} average ({trait.value:+.1f} SD)"


def _metrics_text(one: CandidateResult) -> str:
    texts = []
    for metric, (title, digits) in _SUMMARY_METRICS.items():
        value = one.metrics[metric].value if metric in one.metrics else None
        texts += [] if value is None else [f"{title} {value:.{digits}f}"]
    return ", ".join(texts)
