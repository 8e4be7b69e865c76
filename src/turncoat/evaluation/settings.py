"""What a study compares, and how hard it tries."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import msgspec

from turncoat.errors import ConfigError
from turncoat.evaluation.candidates import CALIBRATORS
from turncoat.evaluation.protocols import SplitProtocol
from turncoat.evaluation.tuning import check_extra
from turncoat.features import Features
from turncoat.models.baum_welch import BaumWelchHMM
from turncoat.models.neural.encoder import import_training
from turncoat.models.neural.model import NeuralVariationalHMM
from turncoat.models.variational import VariationalHMM
from turncoat.scoring import Detector

NEURAL, NEURAL_ANCHORED = "neural", "neural-anchored"
TIERS: dict[str, type[BaumWelchHMM] | type[VariationalHMM]] = {
    "baum-welch": BaumWelchHMM,
    "variational": VariationalHMM,
    NEURAL: NeuralVariationalHMM,
}
BASELINES = ("logistic", "isolation-forest", "xgboost", "lstm")
ABLATIONS = ("joint",)
AUTO = "auto"


@dataclass(frozen=True)
class StudySettings:
    """What a study compares, and how hard it tries."""

    protocol: SplitProtocol = field(default_factory=SplitProtocol)
    tiers: tuple[str, ...] = ("baum-welch", "variational")
    baselines: tuple[str, ...] = ("logistic", "isolation-forest", "xgboost")
    states: int | str = AUTO  # or the number of regimes of every detector
    orders: tuple[int, ...] = tuple(range(2, 11))  # tried where states is auto
    fallback_states: int = 4  # where no order is eligible
    anchored_states: int | None = None  # of the anchored detector; None for as many as the others
    n_fraud_states: int = 1
    include: tuple[str, ...] | None = (
        None  # features of the hidden Markov models; baselines and the neural tier's encoder have all
    )
    latent_dims: tuple[int, ...] = (
        64,
    )  # of the neural tier's encoder; of several one is chosen, with the number of states
    hidden_dim: int = 512
    epochs: int = 200  # at most, of its training
    class_weighting: bool = False  # as it does better without (docs/neural.md)
    activation: str = "gelu"  # before its last layer, or "none"
    dropout_draws: int = 0  # of the encoder when scoring
    lstm_epochs: int = 30  # at most
    ablations: tuple[str, ...] = ()
    joint_cycles: int = 30
    missing_flags: str = "distinct"
    temperature: float | str = 1.0
    n_restarts: int = 5
    max_iter: int = 100
    preset: str = "default"  # "paper" takes the published settings of the models
    calibrations: tuple[str, ...] = (
        "isotonic",
    )  # of every candidate afterwards; XGBoost has them all
    n_trials: int = 20  # of XGBoost's search
    search_rows: int = (
        30_000  # of XGBoost's search, and of the logistic regression's for its penalty
    )
    n_stability: int = 10  # resamples of customers for the stability of K
    n_resamples: int = 1000
    seeds: tuple[int, ...] = (42,)

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        choices = (
            ("tiers", self.tiers, tuple(TIERS)),
            ("baselines", self.baselines, BASELINES),
            ("calibrations", self.calibrations, tuple(CALIBRATORS)),
            ("ablations", self.ablations, ABLATIONS),
        )
        for name, values, allowed in choices:
            if len(set(values)) < len(values):
                raise ConfigError(f"{name} has something twice: {', '.join(values)}")
            for value in values:
                if value not in allowed:
                    raise ConfigError(
                        f"{name} has {value!r}; each must be one of {', '.join(allowed)}"
                    )
        if not self.tiers or not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ConfigError(
                f"a study needs at least one tier, and seeds that differ; found {self.tiers} and {self.seeds}"
            )
        if self.states != AUTO and (
            isinstance(self.states, bool) or not isinstance(self.states, int) or self.states < 1
        ):
            raise ConfigError(
                f"states is {self.states!r}; it must be a whole number of at least 1, or {AUTO!r}"
            )
        if not self.latent_dims or len(set(self.latent_dims)) < len(self.latent_dims):
            raise ConfigError(
                f"latent_dims is {self.latent_dims}; it must be one or more widths, each once"
            )
        if len(self.latent_dims) > 1 and self.states != AUTO:
            raise ConfigError(
                f"a width is chosen together with the number of states; name one of {self.latent_dims}, or let states be auto"
            )
        if "joint" in self.ablations and self.states == 1:
            raise ConfigError(
                "of one state none can take the rows of another: the ablation 'joint' needs 2 states or more"
            )
        if self.ablations and NEURAL not in self.tiers:
            raise ConfigError(
                f"the ablation {self.ablations[0]!r} is of the neural tier. Add it to the tiers, or leave the ablation out"
            )
        for name in (
            "n_restarts",
            "max_iter",
            "n_trials",
            "n_stability",
            "n_resamples",
            "lstm_epochs",
            "joint_cycles",
        ):
            value = getattr(self, name)
            least = 0 if name in ("n_trials", "n_stability") else 1
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ConfigError(
                    f"{name} is {value!r}; it must be a whole number of at least {least}"
                )

    @property
    def main_tier(self) -> str:
        """The tier that anchored detectors, hybrid and ranker are of: the last without an encoder, which has seen the fit part's labels."""
        return next((tier for tier in reversed(self.tiers) if tier != NEURAL), NEURAL)

    def features(self, include: tuple[str, ...] | None = None) -> Features:
        """All engineered features, or some."""
        return Features(
            label_delay_days=self.protocol.label_delay_days,
            missing_flags=self.missing_flags,
            include=include,
        )

    def features_of(self, tier: str) -> Features:
        """The features of a tier."""
        return self.features(None if tier == NEURAL else self.include)

    def model(self, tier: str, n_states: int) -> BaumWelchHMM | VariationalHMM:
        """An unfitted model."""
        seed = self.seeds[0]
        made = (
            TIERS[tier].paper(n_states, random_state=seed, progress=False)
            if self.preset == "paper"
            else TIERS[tier](
                n_states,
                n_restarts=self.n_restarts,
                max_iter=self.max_iter,
                random_state=seed,
                progress=False,
            )
        )
        if tier == NEURAL:
            made.set_params(
                dropout_draws=self.dropout_draws,
                encoder__latent_dim=self.latent_dims[0],
                encoder__hidden_dim=self.hidden_dim,
                encoder__max_epochs=self.epochs,
                encoder__class_weighting=self.class_weighting,
                encoder__activation=self.activation,
            )
        return made

    def detector(self, tier: str, n_states: int, supervision: str = "none") -> Detector:
        """An unfitted detector."""
        return Detector(
            self.features_of(tier),
            self.model(tier, n_states),
            supervision=supervision,
            n_fraud_states=self.n_fraud_states,
            temperature=self.temperature,
        )


def plain_settings(settings: StudySettings) -> dict[str, Any]:
    """StudySettings as JSON has them."""
    plain: dict[str, Any] = json.loads(json.dumps(asdict(settings)))
    return plain


def settings_from(plain: Mapping[str, Any]) -> StudySettings:
    """StudySettings from what `plain_settings` gave."""
    try:
        return msgspec.convert(plain, StudySettings)
    except msgspec.ValidationError as problem:
        raise ConfigError(f"these are not settings of a study ({problem})") from problem


def check_settings(settings: StudySettings) -> None:
    """Refuse, before anything is begun, settings that would be refused later, and packages that are missing."""
    tier, n_states = (
        settings.main_tier,
        settings.states if isinstance(settings.states, int) else min(settings.orders),
    )
    settings.detector(tier, n_states).check_settings()
    settings.detector(tier, n_states, "anchored").check_settings()
    if settings.anchored_states is not None and settings.anchored_states <= settings.n_fraud_states:
        raise ConfigError(
            f"anchored_states is {settings.anchored_states}; it must be above the {settings.n_fraud_states} states of fraud"
        )
    if not all(0 <= seed < 2**32 for seed in settings.seeds):
        raise ConfigError(f"seeds are {settings.seeds}; each must be at least 0 and below 2**32")
    if NEURAL in settings.tiers:
        import_training()
        for width in settings.latent_dims:
            replace(settings, latent_dims=(width,)).detector(NEURAL, n_states).check_settings()
        check_extra("umap", "the map of latents")
    if "lstm" in settings.baselines:
        import_training()
    if "xgboost" in settings.baselines:
        for module in ("xgboost", "optuna", "venn_abers"):
            check_extra(module, "a comparison with XGBoost")


def with_changes(settings: StudySettings, **changes: Any) -> StudySettings:
    """The settings with some of them changed, those of the protocol among them."""
    of_protocol = {
        name: changes.pop(name)
        for name in list(changes)
        if name in SplitProtocol.__dataclass_fields__
    }
    return replace(settings, protocol=replace(settings.protocol, **of_protocol), **changes)
