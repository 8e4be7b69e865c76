"""The one door to torch."""

from __future__ import annotations

from types import ModuleType

from turncoat.errors import ConfigError


def torch_training() -> ModuleType:
    """The module that trains encoders; a ConfigError where torch is not installed."""
    try:
        from turncoat.models.neural import training
    except ImportError as problem:
        raise ConfigError(
            f"training an encoder needs the extra: pip install turncoat[neural] ({problem})"
        ) from problem
    return training
