"""The LSTM baseline sees no later row, no other customer and no label it must not learn from."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from turncoat import ConfigError, DataError, Panel

torch = pytest.importorskip("torch")

from turncoat.evaluation import lstm  # noqa: E402
from turncoat.evaluation.lstm import FittedLSTM, LSTMBaseline  # noqa: E402

QUICK = LSTMBaseline(
    hidden_dim=8, max_epochs=3, learning_rate=1e-2, window_rows=8, batch_rows=128, device="cpu"
)
NEIGHBOURS = 1e-9  # how much a score may owe to what else is scored


def before(values: Any, offsets: Any) -> Any:
    """Of the row before in the same sequence; False for the first."""
    shifted = np.roll(values, 1)
    shifted[offsets[:-1]] = False
    return shifted


def panel_of(rule: str = "cell", n_sequences: int = 60, seed: int = 0) -> Panel:
    """Fraud depends on the row before: a high or missing number, one category, or a missing one."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 25, n_sequences)
    n = int(lengths.sum())
    cells = np.column_stack(
        [rng.normal(size=n), np.where(rng.random(n) < 0.3, np.nan, 0.0)]
    ).astype(np.float32)
    codes = rng.integers(-1, 3, (n, 1))
    told = {
        "cell": cells[:, 0] > 0.8,
        "missing cell": np.isnan(cells[:, 1]),
        "code": codes[:, 0] == 1,
        "missing code": codes[:, 0] < 0,
    }
    labels = before(told[rule], np.concatenate([[0], np.cumsum(lengths)]))
    return Panel.from_arrays(cells, codes, lengths=lengths, labels=labels, n_categories=[3])


PANEL = panel_of()
PLACES = np.flatnonzero(np.random.default_rng(5).random(PANEL.n_rows) < 0.7)


@pytest.fixture(scope="module")
def fitted() -> FittedLSTM:
    return QUICK.fit(PANEL, np.arange(PANEL.n_rows), 0, n_threads=1)


def fit_and_losses(
    panel: Panel, places: Any, settings: LSTMBaseline = QUICK, seed: int = 0
) -> tuple[Any, list[float]]:
    heard: list[tuple[int, float]] = []
    made = settings.fit(
        panel, places, seed, lambda *epoch_and_loss: heard.append(epoch_and_loss), n_threads=1
    )
    assert [epoch for epoch, _ in heard] == list(range(1, len(heard) + 1))
    return made.score(PANEL), [loss for _, loss in heard]


def with_changed(panel: Panel, rows: Any) -> Panel:
    """Other cells and codes in some rows."""
    cells, codes = panel.continuous.copy(), panel.categorical.copy()
    cells[rows] = 3.0
    codes[rows] = 2
    return replace(panel, continuous=cells, categorical=codes)


@pytest.mark.parametrize("rule", ["cell", "missing cell", "code", "missing code"])
def test_it_learns_from_the_row_before(rule: str) -> None:
    panel, held_out = panel_of(rule, n_sequences=100), panel_of(rule, seed=1)
    scores = (
        replace(QUICK, hidden_dim=16, max_epochs=8)
        .fit(panel, np.arange(panel.n_rows), 0, n_threads=1)
        .score(held_out)
    )
    assert scores.shape == (held_out.n_rows,)
    assert scores.dtype == np.float64
    assert roc_auc_score(held_out.labels, scores) > 0.95
    assert scores.mean() == pytest.approx(held_out.labels.mean(), abs=0.05)


def test_later_rows_change_no_earlier_score(fitted: FittedLSTM) -> None:
    sequence = PANEL[int(np.argmax(PANEL.lengths))]
    scores = fitted.score(sequence)
    for at in (1, 9, sequence.n_rows - 1):
        changed = fitted.score(with_changed(sequence, slice(at, None)))
        np.testing.assert_allclose(changed[:at], scores[:at], rtol=0, atol=NEIGHBOURS)
        assert (np.abs(changed[at:] - scores[at:]) > 1e-6).all()
        begun = Panel.from_arrays(
            sequence.continuous[:at], sequence.categorical[:at], lengths=[at], n_categories=[3]
        )
        np.testing.assert_allclose(fitted.score(begun), scores[:at], rtol=0, atol=NEIGHBOURS)


def test_other_sequences_change_no_score(fitted: FittedLSTM) -> None:
    together = fitted.score(PANEL)
    for u in (0, 1, 30, PANEL.n_sequences - 1):
        own = together[PANEL.offsets[u] : PANEL.offsets[u + 1]]
        np.testing.assert_allclose(fitted.score(PANEL[u]), own, rtol=0, atol=NEIGHBOURS)


def test_scores_are_those_of_each_sequence_read_row_by_row(
    fitted: FittedLSTM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The history of a sequence counts, however many sequences and rows are read at once."""
    network = fitted.network
    expected = []
    with torch.no_grad():
        for sequence in PANEL:
            state = None
            for cells, codes in zip(
                sequence.continuous.astype(np.float64), sequence.categorical, strict=True
            ):
                known = torch.tensor(np.where(codes < 0, 3, codes), dtype=torch.int64)
                flag = [float(np.isnan(cells[1]))]
                row = torch.cat(
                    [
                        torch.tensor([*np.nan_to_num(cells), *flag], dtype=torch.float64),
                        network.tables[0].weight[known[0]],
                    ]
                )
                read, state = network.memory(network.row_layer(row[None]), state)
                expected.append(float(torch.sigmoid(network.head(read))))
    for sequences, rows in ((1024, 8192), (7, 20), (1, 1)):
        monkeypatch.setattr(lstm, "_BATCH_SEQUENCES", sequences)
        monkeypatch.setattr(lstm, "_BATCH_ROWS", rows)
        np.testing.assert_allclose(fitted.score(PANEL), expected, rtol=0, atol=NEIGHBOURS)


@pytest.mark.parametrize("window_rows", [1, 4, 100])
def test_windows_cover_every_row_once_after_its_own_history(window_rows: int) -> None:
    scored = np.isin(np.arange(PANEL.n_rows), PLACES)
    windows = lstm._Windows.of(PANEL, scored, window_rows)
    starts = np.repeat(PANEL.offsets[:-1], PANEL.lengths)
    times = np.zeros(PANEL.n_rows, int)
    for first, own, length in zip(windows.first, windows.own, windows.lengths, strict=True):
        times[own : first + length] += 1
        for row in range(own, first + length):
            assert starts[row] == starts[first]
            assert row - first >= min(window_rows, row - starts[row])
        assert scored[own : first + length].any()
    assert (times[scored] == 1).all()
    assert times.max() == 1


def test_the_loss_is_the_cross_entropy_of_target_rows_alone(fitted: FittedLSTM) -> None:
    scored = np.isin(np.arange(PANEL.n_rows), PLACES)
    windows = lstm._Windows.of(PANEL, scored, 100)
    batches = list(windows.batches(128, np.random.default_rng(0)))
    assert sorted(np.concatenate(batches)) == list(range(len(windows.lengths)))
    assert all(windows.lengths[batch].sum() < 128 + windows.lengths.max() for batch in batches)
    scores, labels = fitted.score(PANEL), PANEL.labels
    entropy = -np.log(np.where(labels == 1, scores, 1 - scores))
    for batch in batches[:3]:
        read = np.concatenate(
            [np.arange(windows.first[w], windows.first[w] + windows.lengths[w]) for w in batch]
        )
        with torch.no_grad():
            assert float(windows.loss(fitted.network, batch)) == pytest.approx(
                entropy[read][scored[read]].mean()
            )
    assert lstm._validation_loss(fitted.network, PANEL, scored) == pytest.approx(
        entropy[scored].mean()
    )


def test_a_window_reads_what_came_before_it_but_is_not_trained_on_it(fitted: FittedLSTM) -> None:
    """With windows of one row, each row is scored after reading one row before it."""
    sequence = PANEL[int(np.argmax(PANEL.lengths))]
    windows = lstm._Windows.of(sequence, np.ones(sequence.n_rows, bool), 1)
    pairs = [
        Panel.from_arrays(sequence.continuous[i - 1 : i + 1], sequence.categorical[i - 1 : i + 1])
        for i in (5, 6, 7)
    ]
    scores = np.array([fitted.score(pair)[1] for pair in pairs])
    labels = sequence.labels[5:8]
    with torch.no_grad():
        loss = float(windows.loss(fitted.network, np.array([5, 6, 7])))
    assert loss == pytest.approx(-np.log(np.where(labels == 1, scores, 1 - scores)).mean())


def test_labels_of_history_and_unknown_labels_are_never_looked_at() -> None:
    history = np.setdiff1d(np.arange(PANEL.n_rows), PLACES)
    flipped, unknown = PANEL.labels.copy(), PANEL.labels.copy()
    flipped[history] = 1 - flipped[history]
    unknown[history] = -1
    scores, losses = fit_and_losses(PANEL, PLACES)
    for panel, places in (
        (replace(PANEL, labels=flipped), PLACES),
        (replace(PANEL, labels=unknown), np.arange(PANEL.n_rows)),
    ):
        other_scores, other_losses = fit_and_losses(panel, places)
        np.testing.assert_array_equal(other_scores, scores)
        assert other_losses == losses
    assert fit_and_losses(replace(PANEL, labels=flipped), np.arange(PANEL.n_rows))[1] != losses


def test_history_is_read() -> None:
    history = np.setdiff1d(np.arange(PANEL.n_rows), PLACES)
    assert not np.array_equal(
        fit_and_losses(with_changed(PANEL, history), PLACES)[0], fit_and_losses(PANEL, PLACES)[0]
    )


def test_held_out_customers_teach_nothing_but_when_to_stop() -> None:
    train, held_out = lstm._split_targets(
        PANEL, np.arange(PANEL.n_rows), QUICK.validation_fraction, 0
    )
    by_customer = [np.logical_or.reduceat(part, PANEL.offsets[:-1]) for part in (train, held_out)]
    np.testing.assert_array_equal(by_customer[0], ~by_customer[1])
    one_epoch = replace(QUICK, max_epochs=1)
    scores, losses = fit_and_losses(PANEL, np.arange(PANEL.n_rows), one_epoch)
    other_scores, other_losses = fit_and_losses(
        with_changed(PANEL, held_out), np.arange(PANEL.n_rows), one_epoch
    )
    np.testing.assert_array_equal(other_scores, scores)
    assert other_losses != losses


def test_the_best_epoch_is_kept_and_patience_ends() -> None:
    labels = (
        np.random.default_rng(3).integers(0, 2, PANEL.n_rows).astype(np.int8)
    )  # nothing to learn: it soon gets worse
    panel = replace(PANEL, labels=labels)
    scores, losses = fit_and_losses(
        panel, np.arange(PANEL.n_rows), replace(QUICK, max_epochs=50, patience_epochs=2)
    )
    best = int(np.argmin(losses)) + 1
    assert len(losses) == best + 2 < 50
    kept, until_best = fit_and_losses(
        panel, np.arange(PANEL.n_rows), replace(QUICK, max_epochs=best)
    )
    assert until_best == losses[:best]
    np.testing.assert_array_equal(kept, scores)


def test_long_gradients_are_shortened(monkeypatch: pytest.MonkeyPatch) -> None:
    first, last = fit_and_losses(PANEL, PLACES)[1][::2]
    assert last < first - 0.02
    monkeypatch.setattr(lstm, "_MAX_GRADIENT_NORM", 1e-14)  # far below what Adam takes for nothing
    first, last = fit_and_losses(PANEL, PLACES)[1][::2]
    assert last == pytest.approx(first, abs=1e-3)


def test_the_seed_decides_and_torch_is_left_as_it_was() -> None:
    torch.manual_seed(1)
    generator, threads = torch.random.get_rng_state(), torch.get_num_threads()
    first = fit_and_losses(PANEL, PLACES)[0]
    assert torch.equal(generator, torch.random.get_rng_state())
    assert torch.get_num_threads() == threads
    assert not torch.are_deterministic_algorithms_enabled()
    torch.manual_seed(2)
    np.testing.assert_array_equal(fit_and_losses(PANEL, PLACES)[0], first)
    assert not np.array_equal(fit_and_losses(PANEL, PLACES, seed=1)[0], first)


def test_a_code_that_training_never_met_says_as_much_as_any_other_such() -> None:
    panel = panel_of()
    roomy = Panel.from_arrays(
        panel.continuous,
        np.abs(panel.categorical),
        lengths=panel.lengths,
        labels=panel.labels,
        n_categories=[9],
    )
    made = QUICK.fit(roomy, np.arange(panel.n_rows), 0, n_threads=1)
    unseen = [
        made.score(replace(roomy, categorical=np.full_like(roomy.categorical, code)))
        for code in (-1, 5, 8)
    ]
    np.testing.assert_array_equal(unseen[0], unseen[1])
    np.testing.assert_array_equal(unseen[0], unseen[2])
    assert not np.array_equal(
        unseen[0], made.score(replace(roomy, categorical=np.full_like(roomy.categorical, 2)))
    )


def test_panels_of_one_kind_of_column() -> None:
    every_row = np.arange(PANEL.n_rows)
    for cells, codes in ((PANEL.continuous[:, :1], None), (None, PANEL.categorical)):
        panel = Panel.from_arrays(cells, codes, lengths=PANEL.lengths, labels=PANEL.labels)
        scores = QUICK.fit(panel, every_row, 0, n_threads=1).score(panel)
        assert ((scores > 0) & (scores < 1)).all()
        assert np.ptp(scores) > 0.01


def test_it_refuses_what_it_cannot_learn_from() -> None:
    every_row = np.arange(PANEL.n_rows)
    legitimate = np.flatnonzero(PANEL.labels == 0)
    of_one = np.where(every_row == np.argmax(PANEL.labels), PANEL.labels, 0).astype(np.int8)
    for panel, places, found in (
        (
            replace(PANEL, labels=None),
            every_row,
            "0 rows of 0 customers with label 0 and 0 rows of 0 customers with label 1",
        ),
        (
            PANEL,
            legitimate,
            rf"{len(legitimate)} rows of \d+ customers with label 0 "
            "and 0 rows of 0 customers with label 1",
        ),
        (replace(PANEL, labels=of_one), every_row, "1 rows of 1 customers with label 1"),
    ):
        with pytest.raises(DataError, match=found):
            QUICK.fit(panel, places, 0)
    for places in ([-1, 3], [PANEL.n_rows], [0.5], PANEL.labels == 1):
        with pytest.raises(DataError, match="places must be whole numbers"):
            QUICK.fit(PANEL, np.asarray(places), 0)
    with pytest.raises(DataError, match="expected a Panel, found ndarray"):
        QUICK.fit(PANEL.continuous, every_row, 0)  # type: ignore[arg-type]


def test_it_refuses_to_score_what_it_does_not_know(fitted: FittedLSTM) -> None:
    with pytest.raises(DataError, match="row 1, column 0: code 3 is unknown"):
        fitted.score(Panel.from_arrays(np.zeros((2, 2)), np.array([[0], [3]])))
    with pytest.raises(DataError, match="2 continuous and 1 categorical columns"):
        fitted.score(Panel.from_arrays(np.zeros((2, 3)), np.array([[0], [1]])))


def test_a_loss_that_is_no_number_is_named() -> None:
    with pytest.raises(DataError, match="validation loss became nan in epoch 1"):
        replace(QUICK, learning_rate=1e36).fit(PANEL, np.arange(PANEL.n_rows), 0, n_threads=1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"hidden_dim": 1},
        {"max_epochs": 0},
        {"patience_epochs": 0},
        {"learning_rate": 0.0},
        {"window_rows": 0},
        {"batch_rows": 0},
        {"validation_fraction": 1.0},
        {"device": "abacus"},
    ],
)
def test_settings_that_cannot_be(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"LSTMBaseline: {next(iter(wrong))} must be"):
        LSTMBaseline(**wrong)
