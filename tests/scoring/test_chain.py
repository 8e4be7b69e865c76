"""How a detector fits its chain: rows to select on, and settings that contradict each other."""

from __future__ import annotations

import numpy as np
import pytest

from tests.scoring.detectors import model_of
from turncoat import ConfigError, Panel
from turncoat.scoring.chain import AUTO, ChainFit, SelectionRows
from turncoat.scoring.supervision import Anchoring


def make_selection(seed: int = 0) -> SelectionRows:
    """Some rows of customers of one to six transactions, with ids that say where they were."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 7, 20)
    n_rows = lengths.sum()
    labels = (rng.random(n_rows) < 0.4).astype(np.int8)
    cells = rng.normal(size=(n_rows, 2)) + labels[:, None]
    keys = rng.permutation([f"c{i}" for i in range(20)])
    panel = Panel.from_arrays(
        cells, lengths=lengths, labels=labels, customers=keys, ids=rng.permutation(n_rows)
    )
    return SelectionRows(panel, np.sort(rng.permutation(n_rows)[: n_rows // 2]))


@pytest.mark.parametrize("n_dropped", [0, 1, 7, 19])
def test_dropped_customers_leave_exactly_the_rows_of_the_others(n_dropped: int) -> None:
    selection = make_selection()
    panel = selection.panel
    dropped = np.random.default_rng(1).permutation(panel.customers)[:n_dropped]
    found = selection.drop_customers(np.append(dropped, "nobody"))
    owners = np.repeat(panel.customers, panel.lengths)
    expected = [panel.ids[row] for row in selection.places if owners[row] not in dropped]
    assert found.panel.ids[found.places].tolist() == expected
    assert found.panel.customers.tolist() == [c for c in panel.customers if c not in dropped]
    history = panel.ids[~np.isin(owners, dropped)]
    np.testing.assert_array_equal(found.panel.ids, history)
    by_id = dict(zip(panel.ids, panel.labels, strict=True))
    labels = found.panel.labels[found.places].tolist()
    assert labels == [by_id[one] for one in expected]
    assert selection.panel is panel


def test_weighted_evidence_needs_anchors_and_no_temperature() -> None:
    model, anchoring = model_of("expected-log", 2), Anchoring()
    for chain in (
        ChainFit(model),
        ChainFit(model, None, AUTO),
        ChainFit(model, anchoring, 3.0),
        ChainFit(model, anchoring, weighs_evidence=True),
    ):
        chain.check()
    with pytest.raises(ConfigError, match=r"states of fraud; use supervision='anchored'"):
        ChainFit(model, weighs_evidence=True).check()
    for temperature in (2.0, AUTO):
        with pytest.raises(ConfigError, match=f"temperature is {temperature!r}, and evidence is"):
            ChainFit(model, anchoring, temperature, weighs_evidence=True).check()


def test_only_weights_and_a_chosen_temperature_need_selection_rows() -> None:
    model, anchoring = model_of("expected-log", 2), Anchoring()
    needed = {
        "plain": ChainFit(model, anchoring, 2.0).needs_selection,
        "auto": ChainFit(model, None, AUTO).needs_selection,
        "weighted": ChainFit(model, anchoring, weighs_evidence=True).needs_selection,
    }
    assert needed == {"plain": False, "auto": True, "weighted": True}


def test_a_fit_leaves_its_own_model_unfitted_and_sets_what_was_asked() -> None:
    selection, anchoring = make_selection(), Anchoring()
    model = model_of("expected-log", 2, weights=[1.0, 0.0])
    weighted = ChainFit(model, anchoring, weighs_evidence=True)
    fitted = weighted.fit(selection.panel, selection)
    assert (model.weights, fitted.temperature) == ([1.0, 0.0], 1.0)
    assert not hasattr(model, "params_")
    assert fitted.weights[0] > 0.0 == fitted.weights[1]
    assert ChainFit(model, anchoring, 3.0).fit(selection.panel, None).temperature == 3.0
    again = weighted.reweigh(fitted.copy_with(weights=[0.001, 0.5]), selection)
    assert again.weights == fitted.weights  # from the columns of the chain, not from old weights


def test_a_restart_forgets_given_parameters() -> None:
    selection = make_selection()
    fitted = ChainFit(model_of("expected-log", 2)).fit(selection.panel, None)
    given = ChainFit(model_of("expected-log", 2, init=fitted.params_), Anchoring(), 2.0)
    restarted = given.restart()
    assert given.model.init is not None
    assert restarted.model.init is None
    assert (restarted.anchoring, restarted.temperature) == (given.anchoring, 2.0)
