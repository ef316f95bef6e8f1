"""Every error a user meets, each with what to do next.

TunerError
├── UsageError(ValueError)            bad problem, key, value or option        exit 2
├── IllegalConfigError(ValueError)    a configuration breaks named rules       exit 1
├── NoLegalConfigError(LookupError)   nothing legal exists for this problem    exit 3
│   └── UnsupportedError              family or dtype not on this architecture exit 3
├── ConfigNotFoundError(LookupError)  no record answers                        exit 3
├── MeasurementError                  nothing could be measured                exit 1
├── DatabaseError                     the results database is unusable         exit 1
└── NoGpuError                        no usable GPU                            exit 5
"""

import difflib
from collections.abc import Iterable
from typing import ClassVar


class TunerError(Exception):
    """Root of the tree; `fix` says what to do next, `code` is stable for programs."""

    code: ClassVar[str] = "ERROR"
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, fix: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.message}; {self.fix}" if self.fix else self.message


class UsageError(TunerError, ValueError):
    """A problem, key, value or option that cannot mean anything."""

    code = "USAGE"
    exit_code = 2


class IllegalConfigError(TunerError, ValueError):
    """A configuration that breaks rules; `violations` names every one."""

    code = "ILLEGAL_CONFIG"

    def __init__(self, message: str, *, violations: tuple[object, ...] = (), fix: str = "") -> None:
        super().__init__(message, fix=fix)
        self.violations = violations


class NoLegalConfigError(TunerError, LookupError):
    """No configuration of any family is legal for the problem."""

    code = "NO_LEGAL_CONFIG"
    exit_code = 3


class UnsupportedError(NoLegalConfigError):
    """No family runs this kernel, type or layout on the architecture."""

    code = "UNSUPPORTED"


class ConfigNotFoundError(TunerError, LookupError):
    """No record answers for this problem on this device."""

    code = "CONFIG_NOT_FOUND"
    exit_code = 3


class MeasurementError(TunerError):
    """A sweep that could measure nothing."""

    code = "MEASUREMENT"


class DatabaseError(TunerError):
    """A results database that cannot be opened, read or written; `unsaved` holds what it did not take."""

    unsaved: tuple[object, ...] = ()

    code = "DATABASE"


class NoGpuError(TunerError):
    """No GPU this process may use."""

    code = "NO_GPU"
    exit_code = 5


def nearest_name(name: str, names: Iterable[str]) -> str:
    """`did you mean X` for the closest of `names`, or the whole list when nothing is close."""
    names = list(names)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"did you mean {close[0]}" if close else f"choose from {', '.join(names)}"
