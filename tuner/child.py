"""Our own child processes: framed messages over pipes, deadlines, and no orphans.

A message is a JSON header with an optional binary payload. Children are `python -m tuner.X`; they
never import the caller's `__main__`, die with their parent, and log to a file the parent can read.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import select
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

Message = tuple[dict[str, Any], bytes]

_FRAME = struct.Struct(">II")
# Names the folder a child looks for modules in after all others.
_LAST_FOLDER = "MOSAIC_TUNER_LAST_FOLDER"
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class ChildDied(Exception):
    """The child ended before it answered; the text is its exit status and the last lines of its log."""


class ChildTimeout(Exception):
    """The child did not answer before the deadline."""


def _encode(header: Mapping[str, Any], payload: bytes) -> bytes:
    text = json.dumps(header).encode()
    return _FRAME.pack(len(text), len(payload)) + text + payload


class Child:
    """One child process and the pipe to it. Not thread-safe: one thread drives one child."""

    def __init__(self, module: str, *arguments: str, environment: Mapping[str, str] | None = None) -> None:
        self._log: IO[bytes] = tempfile.TemporaryFile("w+b")  # noqa: SIM115 - lives as long as the child
        # Several processes write to it, each through an offset of its own.
        fcntl.fcntl(self._log, fcntl.F_SETFL, fcntl.fcntl(self._log, fcntl.F_GETFL) | os.O_APPEND)
        # What the caller can import, the child can: a kernel may stand beside the caller's script.
        root = str(Path(__file__).parent.parent)
        here = str(Path.cwd())
        folders = dict.fromkeys(str(Path(folder).absolute()) for folder in (*sys.path, root))
        importable = here in folders
        # Where a notebook runs there may lie a `queue.py`: found last, or not at all, it shadows nothing.
        folders = {folder: None for folder in folders if folder != here or folder == root}
        self.process = subprocess.Popen(
            # -P: not from the working directory, where a stranger's `select.py` or `tuner/` may lie.
            [sys.executable, "-P", "-m", module, str(os.getpid()), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            bufsize=0,
            # A group of its own: Ctrl-C reaches the parent alone, which then ends its children in order.
            start_new_session=True,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(folders),
                _LAST_FOLDER: here if importable else "",
                **(environment or {}),
            },
        )
        assert self.process.stdin is not None
        os.set_blocking(self.process.stdin.fileno(), False)
        self._buffer = bytearray()

    def send(self, header: Mapping[str, Any], payload: bytes = b"", *, timeout_s: float = 60.0) -> None:
        """Writes one message; raises ChildTimeout when the child does not read, ChildDied when it is gone."""
        deadline = time.monotonic() + timeout_s
        try:
            assert self.process.stdin is not None
            stream = self.process.stdin.fileno()
            view = memoryview(_encode(header, payload))
            while view:
                _, ready, _ = select.select([], [stream], [], max(0.0, deadline - time.monotonic()))
                if not ready:
                    raise ChildTimeout
                view = view[os.write(stream, view) :]
        except (BrokenPipeError, ValueError) as error:
            raise ChildDied(self.last_words()) from error

    def receive(self, timeout_s: float) -> Message:
        """The next message; raises ChildTimeout or ChildDied."""
        deadline = time.monotonic() + timeout_s
        header_bytes, payload_bytes = _FRAME.unpack(self._read(_FRAME.size, deadline))
        header = json.loads(self._read(header_bytes, deadline))
        return header, self._read(payload_bytes, deadline)

    def _read(self, size: int, deadline: float) -> bytes:
        assert self.process.stdout is not None
        stream = self.process.stdout.fileno()
        while len(self._buffer) < size:
            ready, _, _ = select.select([stream], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise ChildTimeout
            part = os.read(stream, 1 << 20)
            if not part:
                raise ChildDied(self.last_words())
            self._buffer += part
        found, self._buffer = bytes(self._buffer[:size]), self._buffer[size:]
        return found

    def last_words(self) -> str:
        """How the child ended, and the last line of its log that says why."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=5)
        status = self.process.returncode
        how = (
            f"killed by {signal.Signals(-status).name}"
            if status is not None and status < 0
            else f"exit {status}"
        )
        self._log.seek(0)
        return f"{how}: {telling_line(self._log.read().decode(errors='replace'))}".removesuffix(": ")

    def kill(self) -> None:
        """Ends the child's whole group at once and waits for it."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        # A process stuck in the driver may outlast SIGKILL; nobody waits for it for ever.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=10)
        for stream in (self.process.stdin, self.process.stdout, self._log):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


def telling_line(log: str) -> str:
    """The line of a log that most likely names the reason.

    The first error of ptxas, whose last line says nothing; else the last error line; else the last.
    """
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    if refusals := [line for line in lines if line.startswith("ptxas") and "error" in line.lower()]:
        return refusals[0][:500]
    errors = [line for line in lines if any(word in line.lower() for word in ("error", "fatal", "exhausted"))]
    return (errors or lines or [""])[-1][:500]


class Parent:
    """The child's end of the pipe."""

    def __init__(self) -> None:
        _die_with(int(sys.argv[1]))
        if folder := os.environ.get(_LAST_FOLDER):
            sys.path.append(folder)
        self._requests = os.fdopen(os.dup(0), "rb")
        self._replies = os.dup(1)
        # Compilers print to the C-level stdout and stderr: both belong to the log, neither to the pipe.
        os.dup2(2, 1)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)

    def requests(self) -> Iterator[Message]:
        """Messages until the parent closes the pipe."""
        while frame := self._requests.read(_FRAME.size):
            header_bytes, payload_bytes = _FRAME.unpack(frame)
            header = json.loads(self._requests.read(header_bytes))
            yield header, self._requests.read(payload_bytes)

    def reply(self, header: Mapping[str, Any], payload: bytes = b"") -> None:
        """Sends one message."""
        view = memoryview(_encode(header, payload))
        while view:
            view = view[os.write(self._replies, view) :]


@contextlib.contextmanager
def captured_log() -> Iterator[Callable[[], str]]:
    """What this process (compilers included) logs inside the block, readable through the yielded call.

    Nothing where stderr is no file: in a worker of ours it always is one.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    start = os.fstat(2).st_size

    def read() -> str:
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            return os.pread(2, os.fstat(2).st_size - start, start).decode(errors="replace")
        except OSError:
            return ""

    yield read


def _die_with(parent: int) -> None:
    """Asks the kernel to kill this process when its parent dies, however it dies."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
