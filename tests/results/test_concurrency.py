import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tuner.results.store import Store

Maker = Callable[..., Any]

ROOT = Path(__file__).resolve().parents[2]

# PROCESSES children, let go at the same moment, open one database and add ROWS records each.
WRITERS = """
import json, os, sys, traceback
from tuner.results.records import Measurement
from tuner.results.store import Store

url, processes, rows, record = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4])
gate, opens = os.pipe()

def write(writer):
    os.close(opens)
    os.read(gate, 1)
    with Store.open(url) as store:
        for row in range(rows):
            store.add(Measurement.from_dict(record | {"seed": writer, "samples_ns": [1000 + row]}))

children = []
for writer in range(processes):
    child = os.fork()
    if not child:
        try:
            write(writer)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    children.append(child)
os.close(opens)
print(*(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))
"""

# Adds records for ever and says which ones are committed.
ENDLESS = """
import itertools, json, sys
from tuner.results.records import Measurement
from tuner.results.store import Store

with Store.open(sys.argv[1]) as store:
    for seed in itertools.count():
        store.add(Measurement.from_dict(json.loads(sys.argv[2]) | {"seed": seed}))
        print(seed, flush=True)
"""


def python(code: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", code, *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def write_at_once(url: str, record: Any, *, processes: int, rows: int) -> None:
    writers = python(WRITERS, url, processes, rows, json.dumps(record.to_dict()))
    told, errors = writers.communicate(timeout=120)
    assert told.split() == ["0"] * processes, errors
    with Store.open(url, create=False) as store:
        assert len(store.measurements()) == processes * rows
        assert [best.time_us for best in store.bests()] == [1.0]


@pytest.mark.parametrize("attempt", range(3))
def test_processes_create_one_database_at_once(
    tmp_path: Path, any_url: str, measured: Maker, attempt: int
) -> None:
    write_at_once(any_url, measured(), processes=32, rows=1)
    assert [path.name for path in tmp_path.glob("fresh/folder/*")] in ([], ["results.db"])


def test_processes_fill_an_empty_file_at_once(tmp_path: Path, measured: Maker) -> None:
    (tmp_path / "results.db").touch()
    write_at_once(str(tmp_path / "results.db"), measured(), processes=32, rows=1)


def test_writers_lose_nothing(any_url: str, measured: Maker) -> None:
    write_at_once(any_url, measured(), processes=8, rows=50)


def test_threads_share_a_store(store: Store, measured: Maker) -> None:
    failures: list[BaseException] = []

    def write(writer: int) -> None:
        try:
            for row in range(25):
                store.add(measured(seed=writer, samples_ns=(1000 + row,)))
                store.bests()
        except Exception as error:  # noqa: BLE001 - told below
            failures.append(error)

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(store.measurements()) == 200


def test_killed_while_writing(tmp_path: Path, measured: Maker) -> None:
    path = tmp_path / "results.db"
    committed: set[tuple[float, int]] = set()
    for second in range(3):
        record = measured(100 - second, second)
        with python(ENDLESS, path, json.dumps(record.to_dict())) as writer:
            assert writer.stdout is not None
            seeds = [int(writer.stdout.readline()) for _ in range(40)]
            writer.kill()
            seeds += map(int, writer.stdout.read().split())
        committed |= {(record.median_us, seed) for seed in seeds}
        with Store.open(str(path), create=False) as store:
            assert committed <= {(m.median_us, m.seed) for m in store.measurements()}
            assert [best.time_us for best in store.bests()] == [record.median_us]
