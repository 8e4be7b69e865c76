"""The encoder of a saved model, beside its parameters: arrays under ``encoder.`` and what they mean."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from turncoat.arrays import Array
from turncoat.models.neural.folded import FoldedEncoder
from turncoat.models.neural.layout import EncoderLayout
from turncoat.models.neural.model import NeuralVariationalHMM
from turncoat.models.neural.trained import TrainingReport

NOT_SAVED = (
    "encoder",
    "checkpoint",
    "device",
)  # of the settings: the encoder is packed here, the others are facts about a session
_PREFIX = "encoder."


def pack_encoder(model: NeuralVariationalHMM) -> tuple[dict[str, Any], dict[str, Array]]:
    """A fitted model's encoder as plain content and arrays."""
    encoder = model.encoder_
    content = {
        "layout": asdict(encoder.layout),
        "head_bias": encoder.head_bias,
        "report": None if encoder.report is None else asdict(encoder.report),
        "given": model.encoder is not None,
    }
    return content, {f"{_PREFIX}{name}": array for name, array in encoder.arrays().items()}


def unpack_encoder(content: dict[str, Any], arrays: dict[str, Array]) -> FoldedEncoder:
    """The encoder that `pack_encoder` took apart; a LookupError, TypeError, ValueError or ConfigError if it makes no sense."""
    layout = EncoderLayout(
        **{**content["layout"], "n_categories": tuple(content["layout"]["n_categories"])}
    )
    report = content["report"]
    if report is not None:
        report = TrainingReport(
            **{
                **report,
                **{name: tuple(report[name]) for name in ("train_losses", "validation_losses")},
            }
        )
    own = {
        name.removeprefix(_PREFIX): array
        for name, array in arrays.items()
        if name.startswith(_PREFIX)
    }
    return FoldedEncoder(layout=layout, head_bias=float(content["head_bias"]), report=report, **own)


def settle_encoder(model: Any, content: dict[str, Any]) -> None:
    """Put a loaded model's `encoder` setting back to what it was: its own if it was given one, None if it trained one."""
    if not content["given"]:
        model.set_params(encoder=None)
