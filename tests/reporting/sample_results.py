"""Sample results: a rich study, a minimal one, and one with hostile names."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from turncoat.evaluation.paper.joint_training import JointCycle, JointRun, JointTraining
from turncoat.evaluation.paper.latent_map import LatentMap
from turncoat.evaluation.paper.manifold import HOLDS, PARTLY, LatentAxis, ManifoldTest
from turncoat.evaluation.protocols import SplitProtocol
from turncoat.evaluation.results import (
    CandidateResult,
    Comparison,
    Curves,
    DataSummary,
    EncoderTraining,
    MetricEstimate,
    OrderRow,
    OrderSelection,
    PublishedResult,
    RegimeRow,
    RegimeTable,
    RegimeTrait,
    Results,
    SliceRow,
    SliceTable,
    SplitPart,
    StudyWarning,
    TierRow,
)
from turncoat.evaluation.summary import (
    AlertBudget,
    AlertCurve,
    Costs,
    Figure,
    Interval,
    PathStep,
    Reliability,
    ReliabilityBin,
    Summary,
    TopCustomer,
    Traffic,
)
from turncoat.scoring.reasons import Reason

_BASE = 0.0083712
_SPREADS = {
    "average_precision": 0.031,
    "auroc": 0.009,
    "ks": 0.014,
    "card_precision_100": 0.012,
    "recall_at_1%": 0.028,
}
_METRICS = (
    "average_precision",
    "auroc",
    "ks",
    "ece_mass",
    "ece_width",
    "brier",
    "log_loss",
    "card_precision_100",
    "recall_at_1%",
)

MANIFEST: dict[str, Any] = {
    "turncoat": "0.4.0",
    "python": "3.11.9",
    "packages": {"numpy": "2.1.3", "scikit-learn": "1.5.2", "xgboost": "3.0.1"},
    "seeds": [1, 2],
    "data": {"file": "transactions.parquet", "sha256": "5f0c1de27a4b9e3311c0f9a2"},
    "config": {
        "protocol": "matched",
        "n_folds": 2,
        "orders": [2, 3, 4, 5, 6],
        "temperature": "auto",
    },
}


def rich() -> Results:
    """Two tiers, anchored ones, baselines, a hybrid, a ranker, two folds, two seeds."""
    return Results(
        protocol=SplitProtocol(),
        preset="handbook",
        data=DataSummary("simulated (handbook)", "handbook", 1_754_155, 4_990, 0.00837, 182),
        parts=(
            SplitPart("fit", 1_150_233, 9_870, 9_412),
            SplitPart("selection", 267_904, 9_801, 2_310),
            SplitPart("calibration", 268_116, 9_799, 2_287),
            SplitPart("test", 268_540, 9_803, 2_248),
        ),
        n_folds=2,
        seeds=(1, 2),
        hmm_features=("amount_to_mean", "pace"),
        candidates=_candidates(),
        scoring_variants=tuple(
            f"{tier}, {score}"
            for tier in ("Baum-Welch", "variational")
            for score in ("raw, smoothed", "corrected, smoothed", "corrected, filtered")
        ),
        comparisons=_comparisons(),
        slices=_slices(),
        selections=(_selection("baum-welch", "bic"), _selection("variational", "elbo")),
        regimes=(_regimes("Baum-Welch"), _regimes("variational")),
        tiers=(
            TierRow(
                "variational",
                "variational, corrected, filtered",
                6,
                "eligibility",
                None,
                0.0317,
                0.1723,
                0.41,
                5.46,
                *_tier_intervals(),
            ),
            TierRow(
                "neural",
                "nobody",
                9,
                "given",
                64,
                0.0381,
                None,
                None,
                None,
                (0.03, 0.05),
                None,
                None,
                None,
            ),
        ),
        published=(
            PublishedResult(
                "Neural VBEM, corrected, filtered",
                "the paper, Table 2",
                {"average_precision": 0.199, "ks": 0.581, "ece_width": 0.0},
            ),
            PublishedResult(
                "Baum-Welch, corrected, filtered",
                "the paper, Table 2",
                {"average_precision": 0.142, "ks": 0.45, "ece_width": 0.0001},
            ),
            PublishedResult(
                "XGBoost", "Fraud Detection Handbook", {"average_precision": 0.639, "auroc": 0.871}
            ),
        ),
        warnings=(
            StudyWarning("few_frauds", "calibration", {"n_frauds": 41.0}),
            StudyWarning("miscalibrated", "XGBoost", {"ece": 0.0123, "fraud_rate": 0.0084}),
            StudyWarning("saturated", "Baum-Welch", {"saturation": 0.97}),
            StudyWarning("miscalibrated", "LSTM", {"ece": 0.0456, "fraud_rate": 0.0084}),
            StudyWarning("unstable_order", "variational", {"n_states": 4.0, "share": 0.4}),
        ),
        encoder_trainings=(_training("neural", 24), _training("neural, weighted", 31, 119.4567)),
        latent_maps=(_latents("neural", 200),),
        joint_training=_joint(),
        summary=summary(),
    )


def summary(has_amounts: bool = True) -> Summary:
    """A detector, XGBoost and six more models over seven budgets."""
    detector = "variational, anchored, corrected, filtered"
    names = {
        "XGBoost on beliefs and features": 1.0,
        "XGBoost inside the variational regimes": 0.98,
        "XGBoost": 0.97,
        "random forest": 0.9,
        detector: 0.85,
        "Baum-Welch, anchored, corrected, filtered": 0.8,
        "logistic regression": 0.7,
        "variational, corrected, filtered": 0.5,
    }
    costs, alerts = Costs(4.0, 0.5, "CHF"), (10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)
    curves = [
        AlertCurve(name, tuple(_budget(one, skill, costs, has_amounts) for one in alerts))
        for name, skill in names.items()
    ]
    bins = tuple(
        ReliabilityBin(score, Figure(0.9 * score, (0.7 * score, min(1.2 * score, 1.0))), rows)
        for score, rows in ((0.9, 100), (0.4, 300), (0.06, 2000), (0.004, 266_140))
    )
    return Summary(
        detector=detector,
        costs=costs,
        traffic=Traffic(
            268_540,
            2_248,
            9_803,
            14,
            1.25,
            23_976.8,
            6_021.4,
            481_712.0 if has_amounts else None,
            3,
        ),
        curves=tuple(curves),
        shown_budget=4,
        best_budget=5 if has_amounts else None,
        gains=tuple(Figure(-12.0 - place, (-31.5, 4.2)) for place in range(len(alerts))),
        reliability=(Reliability(detector, bins), Reliability("XGBoost", bins[:3])),
        top_customers=tuple(_customer(place) for place in range(10)),
    )


def _budget(alerts: float, skill: float, costs: Costs, has_amounts: bool) -> AlertBudget:
    recall = skill * alerts / (alerts + 150)
    frauds = 6_021.4 * recall
    precision = frauds / (30 * alerts)

    def figure(value: float) -> Figure:
        return Figure(value, (0.9 * value, 1.08 * value))

    value = 480_000 * recall
    lost, cost = costs.recoverable_share * value, costs.per_review * 30 * alerts
    return AlertBudget(
        alerts_per_day=alerts,
        alerted_share=alerts / 23_976.8,
        reviews_per_month=30 * alerts,
        n_alerts=14 * alerts / 1.25,
        n_caught=2_248 * recall,
        frauds_per_month=figure(frauds),
        recall=figure(recall),
        precision=figure(precision),
        false_alerts=figure(1 / precision - 1),
        value_per_month=figure(value) if has_amounts else None,
        value_share=figure(recall) if has_amounts else None,
        loss_prevented=lost if has_amounts else None,
        review_cost=cost if has_amounts else None,
        net_saving=Figure(lost - cost, (0.9 * lost - cost, 1.08 * lost - cost))
        if has_amounts
        else None,
    )


def _customer(place: int) -> TopCustomer:
    currency = "SEK" if place == 1 else None
    path = [
        PathStep(f"t{place}-{step}", f"Tuesday {26 + step} June 2018, 08:00 CEST", *paid, chance, 1)
        for step, chance in enumerate((0.004, 0.02, 0.99 - place / 50)[: 1 + place % 3])
        for paid in ((1_012.5 * (step + 1), currency),)
    ]
    reasons = (
        Reason("amount", f"amount {place}, 12x this customer's usual", 2.4),
        Reason("TERMINAL_ID", "TERMINAL_ID 7 probably compromised", 1.2, 0.61),
    )
    last = path[-1].probability
    return TopCustomer(
        customer=f"customer {place}",
        is_fraud=place % 4 != 3,
        probability=last,
        interval=(0.9 * last, min(1.1 * last, 1.0)),
        reasons=reasons[: 1 + place % 2],
        counterparties={"TERMINAL_ID": "7"} if place % 2 else {},
        path=tuple(path),
        n_earlier=37 * place,
    )


def _tier_intervals() -> tuple[Interval, Interval, Interval, Interval]:
    return (0.0291, 0.0345), (0.1502, 0.1944), (0.37, 0.45), (4.81, 6.12)


def minimal() -> Results:
    """One candidate, no fraud in the test rows, nothing else."""
    figure = MetricEstimate(None, (None,), None, None, None)
    curves = Curves((), (), (), (), ())
    only = CandidateResult(
        "forest",
        "baseline",
        None,
        None,
        None,
        "anomaly",
        False,
        {"average_precision": figure, "brier": figure},
        curves,
    )
    return Results(
        protocol=SplitProtocol("paper"),
        preset="paper",
        data=None,
        parts=(),
        n_folds=1,
        seeds=(1,),
        hmm_features=None,
        candidates=(only,),
        scoring_variants=(),
        comparisons=(),
        slices=(),
        selections=(),
        regimes=(),
        published=(),
        warnings=(),
    )


def hostile(name: str) -> Results:
    """Every name that comes from outside is this one."""
    base = rich()
    candidate = _candidate(name, "baseline", None, None, None, "probability", 0.5, note=name)
    return Results(
        protocol=SplitProtocol(),
        preset=name,
        data=DataSummary(name, name, 1, 1, 0.0, 1),
        parts=(SplitPart(name, 1, 1, 1),),
        n_folds=2,
        seeds=(1,),
        hmm_features=(name,),
        candidates=(candidate,),
        scoring_variants=(name,),
        comparisons=(Comparison(name, name, name, 0.1, (0.0, 0.2), (0.0, 0.2), None, name),),
        slices=(SliceTable(name, name, (SliceRow(name, 1, 0, {name: None}),)),),
        selections=(
            OrderSelection(
                **{
                    **_fields(base.selections[0]),
                    "tier": name,
                    "features": name,
                    "measured_on": name,
                    "chosen_by": name,
                }
            ),
        ),
        regimes=(
            replace(
                base.regimes[0],
                detector=name,
                measured_on=name,
                rows=tuple(
                    replace(row, traits=(RegimeTrait(name, 1.0), RegimeTrait(name, 0.5, name)))
                    for row in base.regimes[0].rows
                ),
            ),
        ),
        published=(PublishedResult(name, name, {name: 0.1}),),
        warnings=(StudyWarning(name, name, {}), StudyWarning("saturated", name, {"saturation": 1})),
        encoder_trainings=(replace(base.encoder_trainings[0], detector=name),),
        latent_maps=tuple(
            replace(
                one,
                detector=name,
                projection=name,
                axes=tuple(replace(axis, name=name) for axis in one.axes),
            )
            for one in base.latent_maps
        ),
        joint_training=replace(_joint(), runs=(JointRun(name, _joint().runs[0].cycles),)),
        verdict=name,
        summary=_hostile_summary(name),
    )


def _hostile_summary(name: str) -> Summary:
    base = summary()
    curve = AlertCurve(name, base.budgets)
    reason = Reason(name, name, 1.0)
    customers = tuple(
        replace(
            one,
            customer=name,
            reasons=(reason,),
            counterparties={name: name},
            path=tuple(
                replace(step, transaction=name, moment=name, currency=name) for step in one.path
            ),
        )
        for one in base.top_customers
    )
    return replace(
        base,
        detector=name,
        curves=(curve,),
        gains=(),
        costs=Costs(currency="</script>"),
        reliability=(Reliability(name, base.reliability[0].bins),),
        top_customers=customers,
    )


def _fields(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__dataclass_fields__}


def _candidates() -> tuple[CandidateResult, ...]:
    made = []
    for tier, name, skill in (
        ("baum-welch", "Baum-Welch", 0.30),
        ("variational", "variational", 0.34),
    ):
        made += [
            _candidate(f"{name}, raw, smoothed", "hmm", tier, "none", "smoothed", "raw", skill),
            _candidate(
                f"{name}, corrected, smoothed",
                "hmm",
                tier,
                "none",
                "smoothed",
                "corrected",
                skill + 0.018,
            ),
            _candidate(
                f"{name}, corrected, filtered",
                "hmm",
                tier,
                "none",
                "filtered",
                "corrected",
                skill - 0.003,
            ),
            _candidate(
                f"{name}, anchored, corrected, filtered",
                "hmm",
                tier,
                "anchored",
                "filtered",
                "corrected",
                skill + 0.274,
            ),
        ]
    made += [
        _candidate(
            "XGBoost",
            "baseline",
            None,
            None,
            None,
            "probability",
            0.7402,
            note="64 trials of Optuna, exact trees",
        ),
        _candidate("logistic regression", "baseline", None, None, None, "probability", 0.5611),
        _candidate("random forest", "baseline", None, None, None, "probability", 0.6904),
        _candidate("isolation forest", "baseline", None, None, None, "anomaly", 0.1873),
        _candidate("XGBoost, isotonic", "calibrated", None, None, None, "probability", 0.7301),
        _candidate(
            "XGBoost on beliefs and features",
            "hybrid",
            "variational",
            "anchored",
            "filtered",
            "probability",
            0.7455,
        ),
        _candidate(
            "XGBoost inside the variational regimes",
            "ranker",
            "variational",
            "none",
            "filtered",
            "probability",
            0.7439,
        ),
    ]
    return tuple(made)


def _candidate(
    name: str,
    family: str,
    tier: str | None,
    supervision: str | None,
    mode: str | None,
    kind: str,
    skill: float,
    note: str = "",
) -> CandidateResult:
    is_probability = kind in ("corrected", "probability")
    gap = 0.0007 + 0.0031 * (1 - skill) if is_probability else 0.1234 + skill / 10
    values = {
        "average_precision": skill,
        "auroc": 0.75 + 0.22 * skill,
        "ks": 0.40 + 0.45 * skill,
        "ece_mass": gap,
        "ece_width": gap * 0.61,
        "brier": 0.0071 - 0.004 * skill + (0 if is_probability else 0.05),
        "log_loss": 0.041 - 0.02 * skill + (0 if is_probability else 0.3),
        "card_precision_100": 0.12 + 0.21 * skill,
        "recall_at_1%": 0.1 + 0.8 * skill,
    }
    metrics = {
        metric: _estimate(values[metric], _SPREADS.get(metric, values[metric] / 9))
        for metric in _METRICS
    }
    return CandidateResult(
        name,
        family,
        tier,
        supervision,
        mode,
        kind,
        is_probability,
        metrics,
        _curves(skill, gap),
        note,
    )


def _estimate(value: float, spread: float) -> MetricEstimate:
    customers, transactions = (
        (value - spread, value + spread * 1.07),
        (value - spread * 0.43, value + spread * 0.45),
    )
    return MetricEstimate(
        value, (value - spread / 3, value + spread / 3), spread / 7, transactions, customers
    )


def _curves(skill: float, gap: float) -> Curves:
    recall = tuple(place / 60 for place in range(61))
    precision = tuple(
        _BASE + (1 - _BASE) * (1 - r ** (0.4 + 3 * skill * skill)) * (0.5 + skill / 2)
        for r in recall
    )
    scores = tuple(0.0004 * math.exp(place * 0.55 * (0.6 + skill / 2)) for place in range(10))
    shares = tuple(
        max(0.0, score * (1 + 25 * gap * math.sin(place * 1.7))) if place else 0.0
        for place, score in enumerate(scores)
    )
    return Curves(recall, precision, scores, shares, (26_854,) * 10)


def _comparisons() -> tuple[Comparison, ...]:
    def of(
        first: str,
        second: str,
        metric: str,
        value: float,
        spread: float,
        p: float | None = None,
        topic: str = "",
    ) -> Comparison:
        wide: Interval = (value - spread, value + spread)
        return Comparison(
            first,
            second,
            metric,
            value,
            (value - spread * 0.6, value + spread * 0.6),
            wide,
            p,
            topic,
        )

    ranker, hybrid = "XGBoost inside the variational regimes", "XGBoost on beliefs and features"
    return (
        of(ranker, "XGBoost", "average_precision", 0.00371, 0.0042, None, "ranker"),
        of(hybrid, "XGBoost", "average_precision", 0.0053, 0.0039, None, "hybrid"),
        of(
            "variational, corrected, filtered",
            "variational, raw, smoothed",
            "ece_mass",
            -0.15421,
            0.0117,
            1.2e-88,
            "smoothing",
        ),
        of(
            "variational, corrected, filtered",
            "Baum-Welch, corrected, filtered",
            "average_precision",
            0.04,
            0.021,
        ),
        of(
            "variational, anchored, corrected, filtered",
            "variational, corrected, filtered",
            "average_precision",
            0.277,
            0.033,
        ),
        of(ranker, "XGBoost, isotonic", "log_loss", -0.000278, 0.00031, 0.0314),
        of(ranker, "XGBoost", "log_loss", -0.0011, 0.0005, 0.00041),
    )


def _slices() -> tuple[SliceTable, ...]:
    tables = []
    for name, skill in (
        ("variational, corrected, filtered", 0.33),
        ("XGBoost inside the variational regimes", 0.74),
    ):
        history = [
            SliceRow(
                label,
                rows,
                frauds,
                {
                    "average_precision": None if frauds == 0 else skill + lift,
                    "ece_mass": 0.0021 - lift / 100,
                },
            )
            for label, rows, frauds, lift in (
                ("first", 12, 0, 0.0),
                ("2nd to 4th", 118, 3, -0.081),
                ("5th to 9th", 402, 9, -0.012),
                ("10th and later", 268_008, 2_236, 0.001),
            )
        ]
        tables.append(SliceTable("by length of history", name, tuple(history)))
    for name, skill in (
        ("variational, corrected, filtered", 0.33),
        ("XGBoost inside the variational regimes", 0.74),
    ):
        scenarios = [
            SliceRow(
                f"scenario {number}",
                266_292 + frauds,
                frauds,
                {"average_precision": skill * lift, "recall_at_1%": min(1.0, skill * lift * 1.3)},
            )
            for number, frauds, lift in ((1, 152, 1.31), (2, 1_391, 0.84), (3, 705, 0.93))
        ]
        tables.append(SliceTable("by scenario", name, tuple(scenarios)))
    return tuple(tables)


def _selection(tier: str, criterion: str) -> OrderSelection:
    sign = -1 if criterion == "bic" else 1
    orders = []
    found = (
        (2, 0.112, 0.021, 2.51),
        (3, 0.061, 0.038, 4.54),
        (4, 0.024, 0.079, 9.44),
        (5, 0.0191, 0.0853, 10.19),
        (6, 0.0031, None, None),
    )
    reasons = (
        "the first eligible order",
        "enrichment 4.54 is 81 % above the kept K = 2",
        "enrichment 9.44 is 108 % above the kept K = 3",
        "enrichment 10.19 is only 8 % above the kept K = 4, less than the 50 % asked for",
        "the fraud regime holds 0.31 % of the rows, below the floor of 0.5 %",
    )
    for (k, occupancy, rate, enrichment), reason in zip(found, reasons, strict=True):
        criteria = {
            criterion: sign * (8_123_456.789 - 91_000.5 * k + 6_100 * k * k),
            "held_out": -31.2345 + 0.61 * k - 0.035 * k * k,
        }
        orders.append(
            OrderRow(k, criteria, occupancy, rate or 0.0912, enrichment, k < 6, k < 5, reason)
        )
    sensitivity = [
        {
            "min_occupancy": floor,
            "min_gain": delta,
            "n_states": None if floor > 0.06 and delta > 0.9 else 4.0 if delta < 1 else 2.0,
        }
        for floor in (0.0025, 0.005, 0.01, 0.1)
        for delta in (0.25, 0.5, 1.0)
    ]
    stability: list[dict[str, float | None]] = [
        {"n_states": 3.0, "by_eligibility": 0.2, "by_criterion": 0.0},
        {"n_states": 4.0, "by_eligibility": 0.75, "by_criterion": 0.05},
        {"n_states": 6.0, "by_eligibility": 0.0, "by_criterion": 0.95},
        {"n_states": None, "by_eligibility": 0.05, "by_criterion": 0.0},
    ]
    chosen_by = "eligibility"
    part = "selection part (held out), filtered"
    answers = (criterion, 6, 4, 4, chosen_by, tuple(sensitivity), tuple(stability))
    return OrderSelection(tier, "engineered", part, _BASE, tuple(orders), *answers)


def _regimes(name: str) -> RegimeTable:
    rows = (
        RegimeRow(
            0,
            0.512,
            0.00041,
            0.00031,
            0.00053,
            0.049,
            0.931,
            (RegimeTrait("amount to mean", -0.1), RegimeTrait("pace", -0.7)),
        ),
        RegimeRow(
            1,
            0.341,
            0.0024,
            0.0021,
            0.0028,
            0.287,
            0.874,
            (RegimeTrait("pace", 0.9), RegimeTrait("hour habit", 0.2)),
        ),
        RegimeRow(
            2,
            0.123,
            0.0113,
            0.0101,
            0.0127,
            1.35,
            0.702,
            (RegimeTrait("terminal risk, 7 days", 1.2),),
        ),
        RegimeRow(
            3,
            0.024,
            0.2451,
            0.2213,
            0.2702,
            29.28,
            0.5512,
            (
                RegimeTrait("amount to mean", 2.1),
                RegimeTrait("terminal risk, 28 days", 3.4),
                RegimeTrait("gap", -1.3),
            ),
        ),
    )
    transition = (
        (0.931, 0.051, 0.016, 0.002),
        (0.091, 0.874, 0.031, 0.004),
        (0.151, 0.122, 0.702, 0.025),
        (0.211, 0.133, 0.1048, 0.5512),
    )
    return RegimeTable(
        name,
        "calibration part, filtered, held out",
        3,
        4.0,
        0.1234,
        0.0181,
        0.0156,
        0.412,
        rows,
        transition,
    )


def _training(name: str, epochs: int, weight: float = 1.0) -> EncoderTraining:
    train = tuple(
        0.0412 + 0.21 * math.exp(-epoch / 4) + 0.0004 * math.sin(3 * epoch)
        for epoch in range(epochs)
    )
    held_out = tuple(
        0.0467 + 0.18 * math.exp(-epoch / 3) + 0.00002 * epoch**2 for epoch in range(epochs)
    )
    return EncoderTraining(
        name,
        8,
        train,
        held_out,
        held_out.index(min(held_out)) + 1,
        stopped_early=epochs < 30,
        class_weight=weight,
    )


def _latents(name: str, rows: int) -> LatentMap:
    """Rows along a bent line, four regimes one after the other, frauds towards the end."""
    places = [row / rows for row in range(rows)]
    x = tuple(
        9 * place + 0.9 * math.sin(97.3 * row) * math.cos(row) for row, place in enumerate(places)
    )
    y = tuple(
        3 * math.sin(4 * place) + 0.8 * math.sin(71.9 * row) for row, place in enumerate(places)
    )
    regimes = tuple(
        (0, 0, 0, 0, 1, 1, 1, 2, 2, 3)[int(10 * place)] if row % 11 else (row // 11) % 4
        for row, place in enumerate(places)
    )
    labels = tuple(int(place > 0.93 and row % 3 == 0) for row, place in enumerate(places))
    ramp = tuple(0.0011 + 0.21 * (at / 19) ** 3 for at in range(20))
    bumpy = tuple(share * (1.4 if at % 2 else 0.6) for at, share in enumerate(ramp))
    mixed = tuple((0.5 - at / 60, 0.3, 0.1 + at / 80, 0.1 + at / 240) for at in range(20))
    return LatentMap(
        detector=name,
        n_test_rows=268_540,
        x=x,
        y=y,
        regimes=regimes,
        labels=labels,
        fraud_regime=3,
        first_component_share=0.4127,
        largest_piece_share=0.9871,
        axes=(
            LatentAxis(
                "first principal component",
                ramp,
                _segments(),
                (0, 1, 2, 3),
                0.8123,
                0.6667,
                0.2345,
                0.9456,
                0.0871,
                0.9765,
            ),
            LatentAxis(
                "first diffusion component",
                bumpy,
                mixed,
                (1, 0, 2, 3),
                0.1234,
                None,
                None,
                None,
                0.0,
            ),
        ),
        manifold=ManifoldTest(
            0, rows, 9, 0.9123, HOLDS, PARTLY, 0.0345, HOLDS, 0.4567, 0.7777, PARTLY, 0.1357
        ),
    )


def _segments() -> tuple[tuple[float, ...], ...]:
    """Shares of four regimes in 20 bins, each with its own stretch."""
    weights = [
        [math.exp(-(((at - middle) / 3) ** 2)) for middle in (3, 9, 14, 19)] for at in range(20)
    ]
    return tuple(tuple(weight / sum(row) for weight in row) for row in weights)


def _joint() -> JointTraining:
    scratch, trained = (
        tuple(_cycle(cycle, keeps * math.exp(-cycle / pace), keeps) for cycle in range(16))
        for keeps, pace in ((0.61, 2.5), (0.93, 6.0))
    )
    runs = (JointRun("from scratch", scratch, 12), JointRun("from the trained encoder", trained))
    return JointTraining(4, 8, 20_000, 1_150_233, _BASE, 1.0486, runs)


def _cycle(cycle: int, alive: float, skill: float) -> JointCycle:
    others = tuple(20_000 * alive * share for share in (0.22, 0.14, 0.05))
    counts = (20_000 - sum(others), *others)
    entropy = -sum(count / 20_000 * math.log(count / 20_000) for count in counts)
    enrichment = None if alive < 0.02 else 1 + 11.5 * alive
    return JointCycle(
        cycle,
        counts,
        math.exp(entropy),
        2.1 * alive,
        0.3 + 1.2 * alive * skill,
        0.4 + 3.1 * alive,
        enrichment,
    )
