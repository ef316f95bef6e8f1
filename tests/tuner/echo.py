"""A child that does what it is told, then answers with what it was sent."""

import ctypes
import os
import subprocess
import sys
import time

from tuner.child import Parent, captured_log


def noise() -> None:
    """Everything that could end up in the pipe: Python's, libc's and another process's standard output."""
    sys.stdout.write("python noise\n")
    sys.stdout.flush()
    os.write(1, b"raw noise\n" * 10_000)
    libc = ctypes.CDLL(None)
    libc.puts(b"libc noise")
    libc.fflush(None)
    os.system("echo shell noise")


def log() -> str:
    os.write(2, b"before\n")
    with captured_log() as read:
        os.write(2, b"inside\n")
        return read()


def main() -> None:
    parent = Parent()
    for header, payload in parent.requests():
        match header.get("do"):
            case "noise":
                noise()
            case "sleep":
                time.sleep(1e6)
            case "exit":
                sys.stderr.write("ptxas fatal: it broke\nbye\n")
                sys.exit(3)
            case "half":
                os.write(parent._replies, b"\0\0\0\x02\0\0\xff\xff{}then nothing")
                os._exit(4)
            case "log":
                header["log"] = log()
            case "input":
                header["input"] = sys.stdin.read()
            case "spawn":
                header["pid"] = subprocess.Popen(["sleep", "1000"]).pid
            case "environment":
                header["environment"] = dict(os.environ)
        parent.reply(header, payload)


if __name__ == "__main__":
    main()
