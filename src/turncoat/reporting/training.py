"""How encoders were trained: the loss after every epoch, and a row of figures for each."""

from __future__ import annotations

from typing import Any

from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

from turncoat.evaluation.results import Results, Training
from turncoat.reporting.drawing import MUTED, SERIES, Canvas, Drawn
from turncoat.reporting.formatting import count, number, tick
from turncoat.reporting.tables import Cell, Column, RowGroup, Table, one_group, words

_PLOT, _TOP, _BELOW = 2.0, 0.15, 0.6  # inches
_WIDE = 20  # a range of losses that needs a logarithmic axis
_TRAIN: dict[str, Any] = {"color": SERIES[0]}
_HELD_OUT: dict[str, Any] = {"color": SERIES[1]}
_KEPT: dict[str, Any] = {"color": MUTED, "linestyle": (0, (4, 1.5))}
_ROWS = "first fold and seed; training loss in sample (fit part, with dropout), validation loss on held-out customers of the fit part"


def losses_figure(results: Results, place: int) -> Drawn | None:
    """Training and validation loss against epoch, the kept epoch marked; None without an epoch."""
    training = results.trainings[place]
    if not training.train_losses:
        return None
    kept = f"epoch {training.best_epoch}, kept: validation loss {number(_kept_loss(training))}"
    entries = [
        ("training, in sample", _TRAIN),
        ("validation customers, held out", _HELD_OUT),
        (kept, _KEPT),
    ]
    canvas = Canvas(_TOP + _PLOT + _BELOW + Canvas.legend_height([name for name, _ in entries]))
    canvas.legend(_TOP + _PLOT + _BELOW - 0.03, entries)
    axes = canvas.axes(_TOP, _PLOT)
    axes.axvline(training.best_epoch, linewidth=1.2, **_KEPT)
    for losses, looks in ((training.train_losses, _TRAIN), (training.validation_losses, _HELD_OUT)):
        axes.plot(
            range(1, len(losses) + 1), losses, linewidth=1.4, marker="o", markersize=2.4, **looks
        )
    every = (*training.train_losses, *training.validation_losses)
    is_wide = min(every) > 0 and max(every) / min(every) > _WIDE
    if is_wide:
        axes.set_yscale("log")
        axes.yaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: tick(value)))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlim=(0.5, len(training.train_losses) + 0.5), xlabel="Epoch", ylabel="Loss")
    axes.grid(visible=True, axis="y")
    what = f"Cross-entropy after each epoch, {training.candidate}; a fraud row weighs {number(training.class_weight, 2)}."
    scale = " Logarithmic axis." if is_wide else ""
    alt = f"Training and validation loss of {training.candidate} over {len(training.train_losses)} epochs; {kept}"
    return canvas.drawn(
        f"losses-{place + 1}", training.candidate, f"{what}{scale} {_where(results)}", alt
    )


def trainings_table(results: Results) -> Table:
    """How each training ended."""
    columns = (
        Column("candidate", "Encoder of", is_number=False),
        Column("latent_dim", "Latents", meaning="dimensions of the latent space"),
        Column("epochs", "Epochs"),
        Column("best_epoch", "Kept epoch", meaning="the one with the lowest validation loss"),
        Column(
            "validation_loss", "Validation loss", meaning="of the kept epoch, on held-out customers"
        ),
        Column("stopped_early", "Stopped early", is_number=False),
        Column("class_weight", "Weight of a fraud", meaning="in the loss; a genuine row weighs 1"),
    )
    rows = [
        (
            words(one.candidate),
            Cell(count(one.latent_dim), one.latent_dim),
            Cell(count(len(one.train_losses)), len(one.train_losses)),
            Cell(count(one.best_epoch), one.best_epoch),
            Cell(number(_kept_loss(one)), _kept_loss(one)),
            Cell("yes" if one.stopped_early else "no", one.stopped_early),
            Cell(number(one.class_weight, 2), one.class_weight),
        )
        for one in results.trainings
    ]
    return Table(
        "trainings",
        f"How each encoder's training ended. {_where(results)}",
        columns,
        one_group(rows),
    )


def losses_table(results: Results) -> Table:
    """The loss after every epoch; the page draws it."""
    columns = (
        Column("epoch", "Epoch"),
        Column("train_loss", "Training loss"),
        Column("validation_loss", "Validation loss"),
    )
    groups = [
        RowGroup(
            one.candidate,
            tuple(
                (
                    Cell(count(epoch), epoch),
                    Cell(number(train), train),
                    Cell(number(held_out), held_out),
                )
                for epoch, (train, held_out) in enumerate(
                    zip(one.train_losses, one.validation_losses, strict=True), start=1
                )
            ),
        )
        for one in results.trainings
    ]
    return Table(
        "losses",
        f"Losses after each epoch. {_where(results)}",
        columns,
        tuple(groups),
        group_name="candidate",
    )


def _kept_loss(training: Training) -> float | None:
    return (
        training.validation_losses[training.best_epoch - 1] if training.validation_losses else None
    )


def _where(results: Results) -> str:
    return f"Split: {results.protocol}, {_ROWS}; no inference."
