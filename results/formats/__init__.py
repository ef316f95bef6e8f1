"""Exchange formats, one module each: its `NAME`, and `write(store, stream)`."""

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from typing import TextIO

from tuner.results.store import Store

Write = Callable[[Store, TextIO], None]


def _found() -> dict[str, Write]:
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    modules = [importlib.import_module(f"{__name__}.{name}") for name in names]
    return {module.NAME: module.write for module in modules}


FORMATS: Mapping[str, Write] = _found()
