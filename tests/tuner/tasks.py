"""What the farm's tests run in workers."""

import os
import sys
import time
from typing import Any

Answer = tuple[dict[str, Any], bytes]


def echo(argument: dict[str, Any]) -> Answer:
    return argument, bytes(argument.get("size", 0))


def who(argument: dict[str, Any]) -> Answer:
    main = sys.modules["__main__"]
    return {
        "pid": os.getpid(),
        "main": main.__spec__.name if main.__spec__ else main.__file__,
        "environment": dict(os.environ),
        "nice": os.nice(0),
    }, b""


def crash(argument: dict[str, Any]) -> Answer:
    sys.stderr.write("LLVM ERROR: out of memory\n")
    sys.stderr.flush()
    os.abort()


def sleep(argument: dict[str, Any]) -> Answer:
    time.sleep(1e6)
    return {}, b""


def refuse(argument: dict[str, Any]) -> Answer:
    raise ValueError(argument["message"])


def assert_nothing(argument: dict[str, Any]) -> Answer:
    raise AssertionError
