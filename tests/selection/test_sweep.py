"""The figures of a sweep against others' arithmetic; what it may and may not read; its refusals."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from tests.selection.portfolio import (
    ORDERS,
    SCHEMA,
    assert_same,
    baum_welch,
    changed,
    frame,
    portfolio,
    reference,
    same_params,
    swept,
    variational,
)
from turncoat import BaumWelchHMM, ConfigError, DataError, Detector, VariationalHMM
from turncoat.data import read
from turncoat.data.splits import (
    DAY,
    drop_short_sequences,
    split_by_customer,
    split_by_time,
    split_prequential,
)
from turncoat.features import Features
from turncoat.scoring import Anchoring
from turncoat.selection import Stability, Sweep, choose, compute_sensitivity, sweep_feature_kinds
from turncoat.selection.orders import CONTEXT, SelectionPanels


def fit_panel(found: Sweep):
    transactions, split = portfolio()
    part = transactions.take(split.fit)
    return found.features.transform(
        part, rows=drop_short_sequences(part.customer_codes, np.arange(part.n_rows))
    )


def selection_panel(found: Sweep):
    transactions, split = portfolio()
    known = np.sort(np.concatenate([split.fit, split.selection]))
    return found.features.transform(transactions.take(known), rows=np.isin(known, split.selection))


@pytest.mark.parametrize("tier", ["baum-welch", "variational"])
def test_the_figures_are_what_they_are_called(tier):
    found = reference(tier)
    fit, held_out = fit_panel(found), selection_panel(found)
    amount = found.features.feature_names[0].index("paid")
    for k, model in found.models.items():
        order, regimes, inside = (
            found.fits[k].summary,
            found.fits[k].held_out,
            found.fits[k].in_sample,
        )
        beliefs, labels = model.filter(held_out).probs, held_out.labels
        rates = [np.average(labels, weights=beliefs[:, j]) for j in range(k)]
        state = int(np.argmax(rates))
        assert order.rate == pytest.approx(rates[state])
        assert order.occupancy == pytest.approx(beliefs[:, state].mean())
        assert order.base_rate == pytest.approx(labels.mean())
        assert order.enrichment == pytest.approx(rates[state] / labels.mean())
        assert order.proxy_agrees == (int(np.argmax(model.params_.means[:, amount])) == state)
        assert (regimes.part, regimes.mode, regimes.in_sample) == ("selection", "filtered", False)
        assert (inside.part, inside.mode, inside.in_sample) == ("fit", "filtered", True)
        np.testing.assert_allclose(inside.mass, model.filter(fit).probs.sum(axis=0))
        np.testing.assert_allclose(inside.frauds, model.filter(fit).probs.T @ fit.labels)
        density = (
            model
            if tier == "baum-welch"
            else VariationalHMM.from_params(model.params_, emission="predictive")
        )
        assert order.criteria["held_out"] == pytest.approx(
            density.log_likelihood(held_out).sum() / held_out.n_rows
        )
        if tier == "baum-welch":
            assert order.criteria["bic"] == pytest.approx(model.bic(fit))
        else:
            assert order.criteria["elbo"] == model.lower_bound_
        assert set(order.criteria) == {"bic" if tier == "baum-welch" else "elbo", "held_out"}
        assert order.measured == "selection part (held out), filtered"


def test_a_planted_regime_is_found_and_both_answers_are_given():
    for tier in ("baum-welch", "variational"):
        choice = reference(tier).choose()
        kept = next(step for step in choice.trail if step.n_states == choice.by_eligibility)
        assert kept.order.proxy_agrees
        assert kept.order.enrichment > 5
        assert choice.by_criterion in ORDERS
        assert choice.describe().startswith(
            "fraud states measured on the selection part (held out), filtered\n"
        )


def test_features_are_fitted_on_the_fit_part_alone():
    transactions, split = portfolio()
    alone = Features(min_count=5).fit(transactions.take(split.fit))
    np.testing.assert_array_equal(
        reference().features.plan.scales.centres, alone.plan.scales.centres
    )


def test_models_keep_every_setting_but_k():
    found = swept(
        model=variational(tol=0.01, random_state=3, max_iter=4, n_threads=1), orders=(3, 2)
    )
    assert list(found.fits) == [2, 3]
    for k, model in found.models.items():
        assert isinstance(model, VariationalHMM)
        assert (model.n_states, model.tol, model.random_state, model.max_iter, model.n_threads) == (
            k,
            0.01,
            3,
            4,
            1,
        )


def test_restarts_are_halved_unless_the_preset_says_otherwise():
    quick = {"n_restarts": 4, "max_iter": 25, "tol": 0.0}
    halved = swept(model=BaumWelchHMM(2, **quick), orders=(3,)).models[3].fit_report_
    assert sum(restart.stopped_early for restart in halved.restarts) == 3
    published = swept(model=BaumWelchHMM.paper(2, **quick), orders=(3,)).models[3]
    assert not published.restart_halving
    assert [restart.n_iter for restart in published.fit_report_.restarts] == [25] * 4


def test_the_thread_count_changes_nothing():
    one = swept(model=baum_welch(n_threads=1))
    two = swept(model=baum_welch(n_threads=2))
    assert one.frame().equals(two.frame())
    assert same_params(one, two)


def test_a_sweep_is_the_same_every_time():
    assert_same(swept(), reference())


POISON = {
    "paid": pl.col("paid") * 1000,
    "age": pl.lit(1e6),
    "device": pl.lit("new"),
    "shop": pl.lit("s0"),
    "fraud": 1 - pl.col("fraud"),
}


def test_calibration_and_test_rows_are_never_read():
    _, split = portfolio()
    hidden = np.concatenate([split.calibration, split.test])
    assert len(hidden) > 100
    poisoned = swept(*changed(hidden, **POISON))
    assert poisoned.identity == reference().identity
    assert_same(poisoned, reference())


def test_selection_rows_are_not_fitted_on_but_judged():
    _, split = portfolio()
    poisoned = swept(*changed(split.selection, **POISON))
    assert same_params(poisoned, reference())
    assert not poisoned.frame().equals(reference().frame())
    relabelled = swept(*changed(split.selection, fraud=1 - pl.col("fraud")))
    assert same_params(relabelled, reference())
    for before, after in zip(reference().orders, relabelled.orders, strict=True):
        assert after.base_rate == pytest.approx(1 - before.base_rate)


def test_fit_rows_are_fitted_on():
    _, split = portfolio()
    assert not same_params(
        swept(*changed(split.fit, paid=pl.col("paid") * (1 + pl.col("id") % 7))), reference()
    )


def test_short_customers_are_judged_but_not_fitted_on():
    transactions, split = portfolio()
    few = np.concatenate(
        [rows[:3] for rows in (split.fit, split.selection)]
    )  # of one customer each
    rest = [
        rows[transactions.customer_codes[rows] != transactions.customer_codes[rows[0]]]
        for rows in (split.fit, split.selection)
    ]
    part = replace(split, fit=np.union1d(rest[0], few[:3]), selection=np.union1d(rest[1], few[3:]))
    parts = SelectionPanels.build(
        transactions, part, Features(min_count=5).fit(transactions.take(part.fit))
    )
    assert parts.fit.n_rows == len(rest[0])
    assert parts.held_out.n_rows == len(rest[1]) + 3


def windows():
    transactions, _ = portfolio()
    who = (transactions.customer_codes, transactions.times, transactions.labels)
    return [
        split_by_time(*who, gap_s=3 * DAY, selection=0.25),
        split_prequential(
            *who,
            train_s=40 * DAY,
            gap_s=5 * DAY,
            test_s=10 * DAY,
            selection_s=15 * DAY,
            calibration_s=5 * DAY,
        )[-1],
    ]


@pytest.mark.parametrize("split", windows(), ids=["by time", "prequential"])
def test_later_rows_of_a_customer_are_judged_after_their_history(split):
    transactions, _ = portfolio()
    features = Features(min_count=5).fit(transactions.take(split.fit))
    panel = SelectionPanels.build(transactions, split, features).held_out
    rows = np.flatnonzero(panel.labels != CONTEXT)
    np.testing.assert_array_equal(panel.ids[rows], transactions.ids[split.selection])
    np.testing.assert_array_equal(panel.labels[rows], transactions.labels[split.selection])
    end = transactions.times[split.selection].max()
    later = np.concatenate([split.calibration, split.test])
    before = np.flatnonzero(
        np.isin(transactions.customer_codes, transactions.customer_codes[split.selection])
        & (transactions.times <= end)
    )
    np.testing.assert_array_equal(
        panel.ids, transactions.ids[before]
    )  # all of their past, and nothing else
    assert not np.isin(later, before).any()
    assert panel.n_rows > len(rows)


@pytest.mark.parametrize("transitions", ["per-row", "continuous"])
@pytest.mark.parametrize("split", windows(), ids=["by time", "prequential"])
def test_the_held_out_likelihood_is_of_judged_rows_given_their_history(split, transitions):
    transactions, _ = portfolio()
    found = swept(transactions, split, model=baum_welch(transitions=transitions), orders=(2,))
    model, panel = (
        found.models[2],
        SelectionPanels.build(transactions, split, found.features).held_out,
    )
    total, beliefs = 0.0, []
    for customer in (
        panel
    ):  # the forward recursion of each customer on their own, up to and without the judged rows
        n_before = int((customer.labels == CONTEXT).sum())
        assert (customer.labels[:n_before] == CONTEXT).all()
        total += model.log_likelihood(customer)[0]
        if n_before:
            first = {
                "continuous": customer.continuous[:n_before],
                "categorical": customer.categorical[:n_before],
                "times": customer.times[:n_before],
            }
            total -= model.log_likelihood(
                type(panel).from_arrays(**first, n_categories=panel.n_categories)
            )[0]
        beliefs.append(model.filter(customer).probs[n_before:])
    order = found.orders[0]
    assert order.criteria["held_out"] == pytest.approx(total / len(split.selection))
    weights = np.concatenate(beliefs)
    rates = (weights * transactions.labels[split.selection][:, None]).sum(axis=0) / weights.sum(
        axis=0
    )
    assert order.rate == pytest.approx(rates.max())
    assert found.fits[2].held_out.n_rows == pytest.approx(len(split.selection))


def test_the_curves_as_a_table():
    table = reference().frame()
    assert table["n_states"].to_list() == list(ORDERS)
    for order, row in zip(reference().orders, table.rows(named=True), strict=True):
        assert row["bic"] == order.criteria["bic"]
        assert row["enrichment"] == order.enrichment
        assert row["proxy_agrees"] == order.proxy_agrees
        inside = reference().fits[order.n_states].in_sample
        assert row["in_sample_rate"] == inside.rates.max()
    numbers = table.select(pl.selectors.numeric()).to_numpy()
    assert np.isfinite(numbers).all()
    assert {"elbo", "held_out", "in_sample_enrichment"} <= set(
        reference("variational").frame().columns
    )


def test_choice_and_sensitivity_are_the_rule_on_the_held_out_orders():
    found = reference()
    assert found.choose(
        min_occupancy=0.1, min_gain=0.2, criterion="held_out", check_proxy=False
    ) == choose(
        found.orders, min_occupancy=0.1, min_gain=0.2, criterion="held_out", check_proxy=False
    )
    assert found.compute_sensitivity((0.0, 0.9), (0.1,)).equals(
        compute_sensitivity(found.orders, (0.0, 0.9), (0.1,))
    )
    assert found.compute_sensitivity((0.0, 0.9), (0.1,))["n_states"].to_list()[1] is None


def test_another_proxy_and_none():
    found = swept(orders=(2,), proxy="amount_z")
    column = found.features.feature_names[0].index("amount_z")
    assert found.fits[2].proxy_state == int(np.argmax(found.models[2].params_.means[:, column]))
    with pytest.raises(
        ConfigError,
        match=r"proxy is 'device'; it must be one of the continuous features: paid, age, ",
    ):
        swept(orders=(2,), proxy="device")
    transactions = read(frame(), replace(SCHEMA, amount=None))
    without = swept(transactions, orders=(2,))
    assert without.proxy is None
    assert without.orders[0].proxy_agrees is None
    assert "no proxy" in without.choose().describe()


def test_both_feature_sets(tmp_path):
    transactions, split = portfolio()
    both = sweep_feature_kinds(
        transactions,
        split,
        model=baum_welch(),
        features=Features(min_count=5),
        orders=iter((2, 3)),
        folder=tmp_path,
    )
    assert list(both) == ["processed", "engineered"]
    assert_same(both["engineered"], swept(orders=(2, 3)))
    assert both["processed"].features.feature_names == (("paid", "age"), ("device", "no_age"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["engineered", "processed"]
    assert (tmp_path / "processed" / "order-03" / "model").is_dir()


def test_progress_is_shown_when_asked_for(capsys):
    swept(orders=(2, 3))
    assert "K = " not in capsys.readouterr().err
    swept(orders=(2, 3), progress=True)
    shown = capsys.readouterr().err
    assert "K = 2 fitted (1 of 2, " in shown
    assert "K = 3 fitted (2 of 2, " in shown
    assert "BaumWelchHMM with 3 states" in shown


def test_an_anchored_sweep_fits_what_an_anchored_detector_fits():
    transactions, split = portfolio()
    found = swept(anchoring=Anchoring(label_noise=0.02))
    for k, fit in found.fits.items():
        made = Detector(
            Features(min_count=5),
            baum_welch().set_params(n_states=k),
            supervision="anchored",
            label_noise=0.02,
        ).fit(transactions, split)
        np.testing.assert_array_equal(fit.model.params_.means, made.model_.params_.means)
        assert fit.held_out.fraud_state == k - 1
    assert found.orders[0].enrichment > 2
    again = found.compute_stability(transactions, split, 2, fast=False)
    assert all(step.reason for choice in again.choices for step in choice.trail)
    assert not same_params(found, reference())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"anchoring": Anchoring(2)}, "n_fraud_states is 2; it must be below the 2 states"),
        ({"orders": ()}, "at least one number of states"),
        ({"orders": (2, 2)}, "each once"),
        ({"orders": (0,)}, "whole numbers of at least 1; found 0"),
        ({"orders": (2.0,)}, r"whole numbers of at least 1; found 2\.0"),
        ({"orders": (True,)}, "found True"),
        ({"model": Features()}, "must be a BaumWelchHMM or a VariationalHMM; found Features"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        swept(**settings)


def test_a_start_of_one_order_is_refused():
    with pytest.raises(ConfigError, match="Set init=None"):
        swept(model=baum_welch(init=reference().models[2].params_))


def test_a_split_without_selection_and_data_without_labels_are_refused():
    transactions, split = portfolio()
    who = (transactions.customer_codes, transactions.times, transactions.labels)
    with pytest.raises(ConfigError, match="has no selection part"):
        swept(transactions, split_by_customer(*who, selection=0))
    with pytest.raises(DataError, match="choosing K needs labels"):
        swept(read(frame(), replace(SCHEMA, label=None)), split)
    genuine = changed(split.selection, fraud=pl.lit(0))
    with pytest.raises(
        DataError, match=r"selection part has 0 known frauds, .* choosing K needs one of"
    ):
        swept(*genuine)


def test_one_state_is_never_eligible():
    choice = swept(orders=(1,)).choose()
    assert choice.by_eligibility is None
    assert math.isclose(choice.trail[0].order.enrichment, 1.0)


class TestStability:
    """The choice on resamples of customers."""

    @staticmethod
    def found(n_resamples=4, seed=1, **settings) -> Stability:
        return reference().compute_stability(*portfolio(), n_resamples, seed, **settings)

    def test_shares_are_of_all_resamples(self):
        found = self.found()
        table = found.frame()
        assert len(found.choices) == 4
        assert table["by_eligibility"].sum() == pytest.approx(1)
        assert table["by_criterion"].sum() == pytest.approx(1)
        for k, eligible, criterion in table.rows():
            assert eligible == sum(choice.by_eligibility == k for choice in found.choices) / 4
            assert criterion == sum(choice.by_criterion == k for choice in found.choices) / 4
        assert found.reference == reference().choose()
        assert "4 resamples of customers, refitted 10 iterations from the sweep's solutions" in str(
            found
        )

    def test_none_has_a_row_of_its_own(self):
        found = self.found(n_resamples=2, min_occupancy=0.99)
        assert found.frame().rows()[-1][:2] == (None, 1.0)
        assert "none" in found.describe()
        assert (
            None
            not in self.found(n_resamples=2, min_occupancy=0.0, check_proxy=False).frame()[
                "n_states"
            ]
        )

    def test_the_seed_says_which_customers(self):
        assert self.found().choices == self.found().choices
        assert self.found(seed=2).choices != self.found().choices
        assert self.found(n_resamples=2).choices == self.found().choices[:2]
        assert self.found(n_resamples=2).choices[0] != self.found(n_resamples=2).choices[1]

    @pytest.mark.parametrize("fast", [True, False])
    def test_each_resample_is_refitted_and_judged_on_its_own_customers(self, fast):
        found = self.found(n_resamples=1, fast=fast)
        drawn = SelectionPanels.build(*portfolio(), reference().features).resample(
            np.random.default_rng([1, 0])
        )
        for k, step in zip(ORDERS, found.choices[0].trail, strict=True):
            start = (
                {"init": reference().models[k].params_, "max_iter": 10}
                if fast
                else {"max_iter": 12}
            )
            model = baum_welch(**start).set_params(n_states=k).fit(drawn.fit)
            beliefs = model.filter(drawn.held_out).probs
            rates = beliefs.T @ drawn.held_out.labels / beliefs.sum(axis=0)
            assert step.order.rate == pytest.approx(rates.max())
            assert step.order.criteria["bic"] == pytest.approx(model.bic(drawn.fit))

    def test_from_scratch_on_the_same_customers_is_the_sweep_itself(self, monkeypatch):
        monkeypatch.setattr(SelectionPanels, "resample", lambda self, rng, both_labels: self)
        assert self.found(n_resamples=1, fast=False).choices == (reference().choose(),)

    def test_a_customer_drawn_twice_is_two_customers(self):
        parts = SelectionPanels.build(*portfolio(), reference().features)
        drawn = parts.resample(np.random.default_rng(5))
        for panel, original in ((drawn.fit, parts.fit), (drawn.held_out, parts.held_out)):
            keys, counts = np.unique(panel.customers, return_counts=True)
            assert panel.n_sequences == original.n_sequences == counts.sum()
            assert counts.max() > 1
            assert len(keys) < original.n_sequences
            for place, key in enumerate(panel.customers):
                whole = original[int(np.flatnonzero(original.customers == key)[0])]
                np.testing.assert_array_equal(panel[place].continuous, whole.continuous)
                np.testing.assert_array_equal(panel[place].labels, whole.labels)

    def test_other_data_are_refused(self):
        _, split = portfolio()
        with pytest.raises(
            DataError, match="not the transactions and the split of the sweep: other selection rows"
        ):
            reference().compute_stability(*changed(split.selection, fraud=1 - pl.col("fraud")), 1)
        for settings in ({"n_resamples": 0}, {"n_resamples": True}, {"seed": -1}):
            with pytest.raises(ConfigError, match=f"{next(iter(settings))} must be a whole number"):
                self.found(**settings)


@pytest.mark.parametrize("split", windows(), ids=["by time", "prequential"])
def test_rows_of_unknown_label_count_in_the_density_and_in_no_rate(split):
    transactions, _ = portfolio()
    is_known = np.arange(transactions.n_rows) % 3 > 0
    labels = np.where(is_known, transactions.labels, -1).astype(np.int8)
    unknown = replace(transactions, labels=labels)
    features = Features("processed", min_count=5)  # which do not depend on labels
    found, whole = (
        swept(one, split, orders=(2,), features=features) for one in (unknown, transactions)
    )
    assert same_params(found, whole)
    assert found.orders[0].criteria == whole.orders[0].criteria
    known = split.selection[is_known[split.selection]]
    assert 0 < len(known) < len(split.selection)
    assert found.orders[0].base_rate == pytest.approx(transactions.labels[known].mean())
    assert found.orders[0].base_rate != pytest.approx(whole.orders[0].base_rate)


def test_a_resample_with_both_labels_has_both_known():
    transactions, split = portfolio()
    labels = np.full(transactions.n_rows, -1, np.int8)
    of_one = split.fit[
        transactions.customer_codes[split.fit] == transactions.customer_codes[split.fit[0]]
    ]
    labels[of_one[:2]] = 0, 1
    labels[split.selection] = transactions.labels[split.selection]
    unknown = replace(transactions, labels=labels)
    features = Features(min_count=5).fit(unknown.take(split.fit))
    panels = SelectionPanels.build(unknown, split, features)
    for seed in range(10):
        sample = panels.resample(np.random.default_rng(seed), both_labels=True)
        assert {0, 1} <= set(sample.fit.labels.tolist())
