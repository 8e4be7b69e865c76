"""What a study compares, and how much effort it spends."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import msgspec

from turncoat.errors import ConfigError, check_count, require_extra
from turncoat.evaluation.candidates import CALIBRATORS
from turncoat.evaluation.protocols import SplitProtocol
from turncoat.features import Features
from turncoat.models.baum_welch import BaumWelchHMM
from turncoat.models.neural.encoder import import_training
from turncoat.models.neural.model import NeuralVariationalHMM
from turncoat.models.variational import VariationalHMM
from turncoat.scoring import Detector

NEURAL = "neural"
TIERS: dict[str, type[BaumWelchHMM] | type[VariationalHMM]] = {
    "baum-welch": BaumWelchHMM,
    "variational": VariationalHMM,
    NEURAL: NeuralVariationalHMM,
}
BASELINES = ("logistic", "isolation-forest", "xgboost", "lstm")
ABLATIONS = ("joint",)
AUTO = "auto"
_POSITIVE = ("n_restarts", "max_iter", "n_resamples", "max_lstm_epochs", "joint_cycles")
_MIN_COUNTS = {**dict.fromkeys(_POSITIVE, 1), "n_trials": 0, "n_stability": 0}


@dataclass(frozen=True)
class StudySettings:
    """What a study compares, and how much effort it spends."""

    protocol: SplitProtocol = field(default_factory=SplitProtocol)
    tiers: tuple[str, ...] = ("baum-welch", "variational")
    baselines: tuple[str, ...] = ("logistic", "isolation-forest", "xgboost")
    states: int | str = AUTO  # number of regimes of every detector
    orders: tuple[int, ...] = tuple(range(2, 11))  # tried if `states` is auto
    fallback_states: int = 4  # if no order is eligible
    anchored_states: int | None = None  # of anchored detectors; None for as many as the others
    n_fraud_states: int = 1
    # Features of the HMMs; baselines and the neural tier's encoder have all.
    include: tuple[str, ...] | None = None
    # Latent widths of the neural tier; of several, one is chosen with the number of states.
    latent_dims: tuple[int, ...] = (64,)
    hidden_dim: int = 512
    max_epochs: int = 200
    class_weighting: bool = False  # the encoder does better without (docs/neural.md)
    activation: str = "gelu"  # before the encoder's last layer, or "none"
    dropout_draws: int = 0  # of the encoder when scoring
    max_lstm_epochs: int = 30
    ablations: tuple[str, ...] = ()
    joint_cycles: int = 30
    missing_flags: str = "distinct"
    temperature: float | str = 1.0
    n_restarts: int = 5
    max_iter: int = 100
    preset: str = "default"  # "paper" uses the published settings of the models
    calibrations: tuple[str, ...] = ("isotonic",)  # of every main candidate; XGBoost has them all
    n_trials: int = 20  # of XGBoost's search, and as many of the hybrid's
    search_rows: int = 60_000  # of the searches of XGBoost, hybrid and logistic regression
    n_stability: int = 10  # resamples of customers for the stability of K
    n_resamples: int = 1000
    seeds: tuple[int, ...] = (42,)

    def __post_init__(self) -> None:
        self._check_choices()
        if not self.tiers or not self.seeds or len(set(self.seeds)) < len(self.seeds):
            rule = "a study needs at least one tier, and seeds that differ"
            raise ConfigError(f"{rule}; found {self.tiers} and {self.seeds}")
        is_count = isinstance(self.states, int) and not isinstance(self.states, bool)
        if self.states != AUTO and (not is_count or int(self.states) < 1):
            rule = f"it must be a whole number of at least 1, or {AUTO!r}"
            raise ConfigError(f"states is {self.states!r}; {rule}")
        widths = self.latent_dims
        if not widths or len(set(widths)) < len(widths):
            raise ConfigError(f"latent_dims is {widths}; it must be one or more widths, each once")
        if len(widths) > 1 and self.states != AUTO:
            rule = "a latent width is chosen together with the number of states"
            raise ConfigError(f"{rule}; name one of {widths}, or set states to auto")
        if "joint" in self.ablations and self.states == 1:
            raise ConfigError("the ablation 'joint' needs 2 states or more; found 1")
        if self.ablations and NEURAL not in self.tiers:
            rule = f"the ablation {self.ablations[0]!r} is of the neural tier"
            raise ConfigError(f"{rule}. Add it to the tiers, or leave the ablation out")
        for name, minimum in _MIN_COUNTS.items():
            check_count(name, getattr(self, name), minimum)

    def _check_choices(self) -> None:
        choices = {"tiers": TIERS, "baselines": BASELINES, "calibrations": CALIBRATORS}
        for name, allowed in {**choices, "ablations": ABLATIONS}.items():
            values = getattr(self, name)
            if len(set(values)) < len(values):
                raise ConfigError(f"{name} lists something twice: {', '.join(values)}")
            if unknown := [value for value in values if value not in allowed]:
                rule = f"each must be one of {', '.join(allowed)}"
                raise ConfigError(f"{name} has {unknown[0]!r}; {rule}")

    @property
    def main_tier(self) -> str:
        """The tier of hybrid and ranker: the last without an encoder, which has seen labels."""
        return next((tier for tier in reversed(self.tiers) if tier != NEURAL), NEURAL)

    @property
    def detectors(self) -> dict[str, str]:
        """Titles of the detectors by the key of their candidate."""
        titles = {tier: tier for tier in self.tiers}
        titles["anchored"] = f"{self.main_tier}, anchored"
        if NEURAL in self.tiers and self.main_tier != NEURAL:
            titles["neural-anchored"] = f"{NEURAL}, anchored"
        return titles

    def make_features(self, tier: str | None = None) -> Features:
        """Unfitted features of a tier; all of them for the baselines and the neural tier."""
        include = None if tier in (None, NEURAL) else self.include
        delay, flags = self.protocol.label_delay_days, self.missing_flags
        return Features(label_delay_days=delay, missing_flags=flags, include=include)

    def make_model(self, tier: str, n_states: int) -> BaumWelchHMM | VariationalHMM:
        """An unfitted model."""
        options: dict[str, Any] = {"random_state": self.seeds[0], "progress": False}
        if self.preset == "paper":
            model = TIERS[tier].paper(n_states, **options)
        else:
            options |= {"n_restarts": self.n_restarts, "max_iter": self.max_iter}
            model = TIERS[tier](n_states, **options)
        if tier == NEURAL:
            names = ("hidden_dim", "max_epochs", "class_weighting", "activation")
            own = {f"encoder__{name}": getattr(self, name) for name in names}
            own |= {"encoder__latent_dim": self.latent_dims[0]}
            model.set_params(dropout_draws=self.dropout_draws, **own)
        return model

    def make_detector(self, tier: str, n_states: int, supervision: str = "none") -> Detector:
        """An unfitted detector."""
        parts = self.make_features(tier), self.make_model(tier, n_states)
        fraud: dict[str, Any] = {"supervision": supervision, "n_fraud_states": self.n_fraud_states}
        return Detector(*parts, temperature=self.temperature, **fraud)

    def check(self) -> None:
        """Refuse settings that a later step would refuse, and missing packages."""
        n_states = self.states if isinstance(self.states, int) else min(self.orders)
        for supervision in ("none", "anchored"):
            self.make_detector(self.main_tier, n_states, supervision).check_settings()
        if self.anchored_states is not None and self.anchored_states <= self.n_fraud_states:
            rule = f"it must be above the {self.n_fraud_states} states of fraud"
            raise ConfigError(f"anchored_states is {self.anchored_states}; {rule}")
        if not all(0 <= seed < 2**32 for seed in self.seeds):
            raise ConfigError(f"seeds are {self.seeds}; each must be at least 0 and below 2**32")
        if NEURAL in self.tiers:
            import_training()
            for width in self.latent_dims:
                own = replace(self, latent_dims=(width,))
                own.make_detector(NEURAL, n_states).check_settings()
            require_extra("umap", "the map of latents")
        if "lstm" in self.baselines:
            import_training()
        if "xgboost" in self.baselines:
            for module in ("xgboost", "optuna", "venn_abers"):
                require_extra(module, "a comparison with XGBoost")

    def to_dict(self) -> dict[str, Any]:
        """The settings as JSON holds them."""
        return dict(json.loads(json.dumps(asdict(self))))

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> StudySettings:
        """Settings from `to_dict`."""
        try:
            return msgspec.convert(plain, cls)
        except msgspec.ValidationError as problem:
            raise ConfigError(f"these are not settings of a study ({problem})") from problem

    def replace(self, **changes: Any) -> StudySettings:
        """A copy with some settings changed, including those of the protocol."""
        names = [name for name in changes if name in SplitProtocol.__dataclass_fields__]
        protocol = replace(self.protocol, **{name: changes.pop(name) for name in names})
        return replace(self, protocol=protocol, **changes)
