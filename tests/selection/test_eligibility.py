"""The rule: the published tables, every reason, ties, and nobody eligible."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, combinations

import numpy as np
import pytest

from tests.selection import paper
from turncoat.errors import ConfigError
from turncoat.selection import OrderSummary, choose, compute_sensitivity

BASE = 0.04


def order(n_states: int, enrichment: float, occupancy: float = 0.05, **changes) -> OrderSummary:
    return replace(
        OrderSummary(n_states, occupancy, enrichment * BASE, BASE, enrichment), **changes
    )


def rising(*enrichments: float) -> list[OrderSummary]:
    """Orders from K = 2 on."""
    return [order(k, enrichment) for k, enrichment in enumerate(enrichments, start=2)]


def test_the_tables_are_typed_in_without_slips():
    for (tier, kind), table in paper.TABLES.items():
        assert [row[0] for row in table] == list(range(2, 11))
        for k, occupancy, rate, enrichment in table:
            assert rate / enrichment == pytest.approx(paper.BASE_RATE, rel=0.02), (tier, kind, k)
            assert occupancy * rate < paper.BASE_RATE


@pytest.mark.parametrize(("width", "published"), [(32, 8), (64, 9), (128, 9)])
def test_the_neural_tables_give_the_published_orders(width, published):
    assert choose(paper.orders(f"neural {width}", "engineered")).by_eligibility == published


# For processed features the paper names 8, 10 and 10: the largest enrichment, not its rule.
@pytest.mark.parametrize(("width", "by_rule", "published"), [(32, 6, 8), (64, 9, 10), (128, 4, 10)])
def test_the_neural_processed_tables_give_others_than_published(width, by_rule, published):
    known = paper.orders(f"neural {width}", "processed")
    assert choose(known).by_eligibility == by_rule
    assert max(known, key=lambda order: order.enrichment).n_states == published


@pytest.mark.parametrize(
    ("tier", "kind", "by_rule", "criterion", "by_criterion"),
    [
        ("baum-welch", "processed", 4, "bic", 10),
        ("baum-welch", "engineered", 6, "bic", 9),
        ("variational", "processed", 8, "elbo", 10),
        ("variational", "engineered", 5, "elbo", 10),
    ],
)
def test_the_other_tables_without_the_proxy(tier, kind, by_rule, criterion, by_criterion):
    choice = choose(paper.orders(tier, kind))
    assert (choice.by_eligibility, choice.criterion, choice.by_criterion) == (
        by_rule,
        criterion,
        by_criterion,
    )


# The published 8, 8 and 7 can be the rule's only if the proxy disqualified the orders named here.
@pytest.mark.parametrize(
    ("tier", "kind", "published", "disqualified"),
    [
        ("baum-welch", "processed", 8, {4, 5, 6, 7}),
        ("baum-welch", "engineered", 8, {3, 4, 5, 6, 7}),
        ("variational", "engineered", 7, {5, 6}),
    ],
)
def test_what_the_published_orders_say_about_the_proxy(tier, kind, published, disqualified):
    known = paper.orders(tier, kind)
    counts = [order.n_states for order in known]
    answering = []
    for agreeing in chain.from_iterable(combinations(counts, n) for n in range(1, len(counts) + 1)):
        judged = [replace(order, proxy_agrees=order.n_states in agreeing) for order in known]
        if choose(judged).by_eligibility == published:
            answering.append(set(agreeing))
    assert answering
    assert set(counts) - set().union(*answering) == disqualified


def test_every_reason_is_in_the_trail():
    choice = choose(
        [
            order(2, 9.0, proxy_agrees=False),
            order(3, 9.0, occupancy=0.004),
            order(4, 0.9),
            order(5, 0.5, occupancy=0.001, proxy_agrees=False),
            order(6, 2.0, proxy_agrees=True),
            order(7, 2.9),
            order(8, 3.1),
            order(9, 3.1),
        ]
    )
    reasons = {step.n_states: (step.eligible, step.kept, step.reason) for step in choice.trail}
    assert reasons == {
        2: (False, False, "the proxy is highest in a state other than the fraud state"),
        3: (False, False, "occupancy 0.40% below the minimum of 0.50%"),
        4: (False, False, "fraud rate 3.60% not above the overall 4.00%"),
        5: (
            False,
            False,
            "the proxy is highest in a state other than the fraud state; "
            "occupancy 0.10% below the minimum of 0.50%; "
            "fraud rate 2.00% not above the overall 4.00%",
        ),
        6: (True, True, "the first eligible order"),
        7: (True, False, "enrichment not more than 50% above K = 6's 2.00x"),
        8: (True, True, "enrichment more than 50% above K = 6's 2.00x"),
        9: (True, False, "as enriched as K = 8's 3.10x, with more states"),
    }
    assert choice.by_eligibility == 8


def test_the_walk_compares_with_the_kept_order_and_not_with_the_one_before():
    assert choose(rising(2.0, 2.8, 3.9)).by_eligibility == 4
    assert choose(rising(2.0, 2.8, 2.9)).by_eligibility == 2
    assert choose(rising(5.0, 1.1, 7.4)).by_eligibility == 2


def test_exactly_delta_more_is_not_more():
    assert choose(rising(1.2, 1.8)).by_eligibility == 2  # 1.2 * 1.5 is a little less than 1.8
    for enrichment in (0.3 / 0.04, 1.1, 1.7, 2.3, 4.2):
        assert choose(rising(enrichment, enrichment * 1.5)).by_eligibility == 2
        assert choose(rising(enrichment, enrichment * 1.5 * (1 + 1e-6))).by_eligibility == 3
    assert choose(rising(1.1, 1.1 * 1.1), min_gain=0.1).by_eligibility == 2


def test_exactly_the_minimum_occupancy_is_eligible():
    known = [order(2, 2.0, occupancy=0.005)]
    assert choose(known).by_eligibility == 2
    assert choose(known, min_occupancy=0.0051).by_eligibility is None


def test_a_fraud_share_as_high_as_the_overall_one_is_not_above_it():
    assert choose([order(2, 1.0)]).by_eligibility is None
    assert choose([order(2, 1.001)]).by_eligibility == 2


def test_ties_fall_to_the_higher_fraud_share_and_then_to_fewer_states():
    assert choose(rising(3.0, 3.0)).by_eligibility == 2
    choice = choose([order(2, 3.0), order(3, 3.0, rate=0.13, base_rate=0.13 / 3)])
    assert choice.by_eligibility == 3
    assert choice.trail[1].reason == "as enriched as K = 2's 3.00x, with a higher fraud rate"
    assert choose([order(2, 3.0), order(3, 3.0, rate=0.11, base_rate=0.11 / 3)]).by_eligibility == 2
    assert (
        choose(rising(3.0, 3.0), min_gain=0.0).by_eligibility == 2
    )  # and not because one exceeds the other by nothing


def test_nobody_eligible_is_said_and_nothing_is_put_in_its_place():
    known = [order(k, 3.0, proxy_agrees=False, criteria={"bic": -float(k)}) for k in (2, 3)]
    choice = choose(known)
    assert choice.by_eligibility is None
    assert choice.by_criterion == 3
    assert not any(step.kept for step in choice.trail)
    assert "by eligibility: none. None of the 2 orders is eligible" in choice.describe()
    assert choose(known, check_proxy=False).by_eligibility == 2


def test_without_fraud_nobody_is_eligible():
    choice = choose([OrderSummary(2, 0.5, 0.0, 0.0, float("nan"))], min_occupancy=0.0, min_gain=0.0)
    assert choice.by_eligibility is None
    assert choice.trail[0].reason == "no fraud at all"


def test_a_proxy_that_is_not_there_does_not_count():
    assert choose([order(2, 3.0, proxy_agrees=None)]).by_eligibility == 2


def test_orders_may_come_in_any_order():
    known = rising(2.0, 2.8, 3.9, 3.9)
    assert choose(reversed(known)) == choose(known)


def test_criteria_have_their_directions():
    values = {"bic": (5.0, 3.0, 4.0), "elbo": (1.0, 2.0, 3.0), "held_out": (-1.0, -3.0, -2.0)}
    known = [
        order(k, 3.0, criteria={name: curve[i] for name, curve in values.items()})
        for i, k in enumerate((2, 3, 4))
    ]
    choice = choose(known)
    assert choice.best == {"bic": 3, "elbo": 4, "held_out": 2}
    assert (choice.criterion, choice.by_criterion) == ("bic", 3)
    assert choose(known, criterion="held_out").by_criterion == 2


def test_a_tie_of_criteria_falls_to_fewer_states():
    assert choose([order(k, 3.0, criteria={"elbo": 1.0}) for k in (3, 2, 4)]).by_criterion == 2


def test_a_criterion_counts_only_if_all_orders_have_it():
    known = [
        order(2, 3.0, criteria={"bic": 1.0, "held_out": 1.0}),
        order(3, 3.0, criteria={"held_out": 0.0}),
    ]
    assert choose(known).criterion == "held_out"
    with pytest.raises(ConfigError, match=r"criterion is 'bic'; these orders all have held_out"):
        choose(known, criterion="bic")
    assert choose(rising(2.0)).by_criterion is None
    assert "No criterion is known" in choose(rising(2.0)).describe()


def test_both_answers_stand_under_the_trail():
    choice = choose(paper.orders("baum-welch", "engineered"))
    lines = str(choice).splitlines()
    assert len(lines) == 12
    assert lines[0].split()[:2] == ["K", "BIC"]
    assert lines[5].split()[0] == "6"
    assert "kept" in lines[5]
    assert lines[-2].startswith("by eligibility: K = 6 (")
    assert lines[-1] == "by criterion:   K = 9 (BIC)"
    assert "(no proxy, occupancy" in lines[-2]
    agreeing = [order(2, 2.0, proxy_agrees=True, measured="moon, by night")]
    assert "(proxy agrees, occupancy" in choose(agreeing).describe()
    assert "(proxy not checked, occupancy" in choose(agreeing, check_proxy=False).describe()
    assert (
        choose(agreeing).describe().splitlines()[0] == "fraud states measured on the moon, by night"
    )


def test_sensitivity_over_both_limits():
    known = [order(2, 2.0, 0.1), order(3, 2.8, 0.02), order(4, 4.5, 0.003)]
    table = compute_sensitivity(known, occupancies=(0.0, 0.005, 0.2), gains=(0.0, 0.5, 2.0))
    assert table.rows() == [
        (0.0, 0.0, 4),
        (0.0, 0.5, 4),
        (0.0, 2.0, 2),
        (0.005, 0.0, 3),
        (0.005, 0.5, 2),
        (0.005, 2.0, 2),
        (0.2, 0.0, None),
        (0.2, 0.5, None),
        (0.2, 2.0, None),
    ]
    unjudged = [replace(o, proxy_agrees=False) for o in known]
    assert compute_sensitivity(unjudged)["n_states"].null_count() == 25
    assert compute_sensitivity(unjudged, check_proxy=False)["n_states"].null_count() == 0


def test_how_far_the_published_orders_hold():
    for width, published, with_floor_of_4_percent in ((32, 8, 10), (64, 9, 10), (128, 9, 4)):
        known = paper.orders(f"neural {width}", "engineered")
        assert set(
            compute_sensitivity(known, np.linspace(0, 0.03, 7), np.linspace(0, 1, 51))["n_states"]
        ) == {published}
        assert compute_sensitivity(known, (0.04,), (0.5,))["n_states"].to_list() == [
            with_floor_of_4_percent
        ]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"min_occupancy": -0.1}, "min_occupancy is -0.1"),
        ({"min_occupancy": 1.0}, "min_occupancy is 1.0"),
        ({"min_occupancy": float("nan")}, "min_occupancy is nan"),
        ({"min_gain": -0.1}, "min_gain is -0.1"),
        ({"min_gain": float("inf")}, "min_gain is inf"),
        ({"criterion": "aic"}, "criterion is 'aic'"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        choose(rising(2.0, 3.0), **settings)


def test_bad_orders_are_refused():
    with pytest.raises(ConfigError, match="no order to choose from"):
        choose([])
    with pytest.raises(ConfigError, match="orders have 2, 2 states"):
        choose([order(2, 1.0), order(2, 2.0)])
    with pytest.raises(ConfigError, match="criterion 'bic' is nan"):
        order(2, 1.0, criteria={"bic": float("nan")})
    with pytest.raises(ConfigError, match="criterion 'aic' is 1"):
        order(2, 1.0, criteria={"aic": 1.0})
