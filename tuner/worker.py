"""A worker process: `python -m tuner.worker`. Calls the pure functions the farm names, one at a time."""

import os

from .child import Parent
from .compiling import reason, resolve


def main() -> None:
    """Serves calls until the parent goes away."""
    parent = Parent()
    # The process that times must never wait for one that compiles.
    os.nice(10)
    parent.reply({"ready": True})
    for header, _ in parent.requests():
        try:
            answer, payload = resolve(header["function"])(header["argument"])
        except Exception as error:  # noqa: BLE001 - any failure is an answer
            answer, payload = {"rung": "legal", "stage": "compile", "reason": reason(error)}, b""
        parent.reply(answer, payload)


if __name__ == "__main__":
    main()
