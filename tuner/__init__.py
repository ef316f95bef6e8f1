"""Find the best tile configuration of a Pallas Mosaic GPU kernel, searching only legal ones."""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from tuner.search_spaces.errors import ConfigNotFoundError as ConfigNotFoundError
    from tuner.search_spaces.errors import DatabaseError as DatabaseError
    from tuner.search_spaces.errors import IllegalConfigError as IllegalConfigError
    from tuner.search_spaces.errors import MeasurementError as MeasurementError
    from tuner.search_spaces.errors import NoGpuError as NoGpuError
    from tuner.search_spaces.errors import NoLegalConfigError as NoLegalConfigError
    from tuner.search_spaces.errors import TunerError as TunerError
    from tuner.search_spaces.errors import UnsupportedError as UnsupportedError
    from tuner.search_spaces.errors import UsageError as UsageError
    from tuner.search_spaces.problem import CopyProblem as CopyProblem
    from tuner.search_spaces.problem import MatmulProblem as MatmulProblem

    from .api import TuningResult as TuningResult
    from .api import legal_space as legal_space
    from .api import tune as tune
    from .lookup import BestConfig as BestConfig
    from .lookup import best_config as best_config

# Loaded on first use, so that `import tuner` loads neither jax nor numpy nor a database.
_HOMES = {
    "tuner.search_spaces.errors": (
        "ConfigNotFoundError",
        "DatabaseError",
        "IllegalConfigError",
        "MeasurementError",
        "NoGpuError",
        "NoLegalConfigError",
        "TunerError",
        "UnsupportedError",
        "UsageError",
    ),
    "tuner.search_spaces.problem": ("CopyProblem", "MatmulProblem"),
    "tuner.api": ("TuningResult", "legal_space", "tune"),
    "tuner.lookup": ("BestConfig", "best_config"),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'tuner' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *_HOME]
