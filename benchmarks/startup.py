"""How long `python -m tuner --help` takes: fresh processes, after one that warms the file cache."""

import argparse
import json
import statistics
import subprocess
import sys
import time

LIMIT_MS = 100
COMMANDS = {
    "python -m tuner --help": ["-m", "tuner", "--help"],
    "python -c 'import tuner'": ["-c", "import tuner"],
    "python -c pass": ["-c", "pass"],
}


def run_ms(arguments: list[str]) -> float:
    start = time.perf_counter_ns()
    subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True)
    return (time.perf_counter_ns() - start) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20, help="processes per command (default %(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    options = parser.parse_args()

    samples_ms = {}
    for name, arguments in COMMANDS.items():
        run_ms(arguments)
        samples_ms[name] = [run_ms(arguments) for _ in range(options.runs)]
    help_ms = statistics.median(next(iter(samples_ms.values())))
    fast = help_ms < LIMIT_MS

    if options.json:
        rows = {
            name: {"median_ms": statistics.median(samples), "min_ms": min(samples), "samples_ms": samples}
            for name, samples in samples_ms.items()
        }
        print(json.dumps({"limit_ms": LIMIT_MS, "below_limit": fast, "commands": rows}))
    else:
        print(f"{'command':<26} {'median ms':>10} {'min ms':>8}")
        for name, samples in samples_ms.items():
            print(f"{name:<26} {statistics.median(samples):>10.1f} {min(samples):>8.1f}")
        print(f"help is {'below' if fast else 'NOT below'} {LIMIT_MS} ms (median of {options.runs} runs)")
    sys.exit(not fast)


if __name__ == "__main__":
    main()
