from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _on_the_cpu() -> Iterator[None]:
    """Interpreting and references run on the CPU, whatever else this machine has."""
    import jax

    with jax.default_device(jax.devices("cpu")[0]):
        yield
