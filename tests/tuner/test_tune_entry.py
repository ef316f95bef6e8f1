"""`tuner.tune` from wherever Python runs; nothing of the caller's is imported a second time."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .sweeps import ROOT, indices, records

# No `if __name__ == "__main__"`: a child that imported this would sweep again.
SCRIPT = """
import os
with open(os.environ["STUB_MARK"], "a") as mark:
    mark.write("run ")
import json
from tests import stubs
stubs.install()
import tuner
problem = tuner.CopyProblem(m=64, n=64, dtype="float32")
with tuner.tune(problem, trials=6, effort="quick", kernel=KERNEL) as result:
    inside = tuner.best_config(problem, device="NVIDIA H200", kernel=KERNEL)
outside = tuner.best_config(problem, device="NVIDIA H200", kernel=KERNEL)
table = result.to_dataframe()
told = json.dumps({
    "best": result.best.index,
    "ties": [config.index for config in result.ties],
    "ratio": result.ratio,
    "records": len(result.records),
    "rows": len(table),
    "columns": list(table.columns),
    "inside": [inside.source, inside.config.index],
    "outside": [outside.source, outside.config.index],
})
print(told)
"""


@pytest.fixture(autouse=True)
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STUB_MARK", str(tmp_path / "mark"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return tmp_path / "mark"


def script(kernel: str = "tests.stubs:FAMILY") -> str:
    return SCRIPT.replace("KERNEL", repr(kernel))


def run(*arguments: str | Path, cwd: Path, text: str | None = None) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        cwd=cwd,
        env=dict(os.environ),
        input=text,
        capture_output=True,
        text=True,
        check=False,
        timeout=90,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def check(told: str, mark: Path) -> None:
    found: dict[str, Any] = json.loads(told)
    assert mark.read_text() == "run "
    timed = indices(records())
    assert len(timed) == found["records"] == found["rows"] == 6
    assert found["best"] == min(timed) == 0
    assert found["ties"] == [0]
    assert found["ratio"] == pytest.approx(1.1)
    columns = ["index", "time_us", "ratio", "registers", "spill_bytes", "smem_bytes"]
    assert found["columns"] == columns
    assert found["inside"] == ["overlay", 0]
    assert found["outside"] == ["measured", 0]


def test_an_unguarded_script(tmp_path: Path, mark: Path) -> None:
    (tmp_path / "mine.py").write_text(script())
    check(run(tmp_path / "mine.py", cwd=tmp_path), mark)


def test_standard_input(tmp_path: Path, mark: Path) -> None:
    check(run("-", cwd=tmp_path, text=script()), mark)


def test_the_command_line(tmp_path: Path, mark: Path) -> None:
    check(run("-c", script(), cwd=tmp_path), mark)


def test_a_kernel_beside_the_script(tmp_path: Path, mark: Path) -> None:
    """Started from another folder: what the script can import, the workers can."""
    (tmp_path / "own_kernel.py").write_text("from tests.stubs import FAMILY\n")
    (tmp_path / "mine.py").write_text(script("own_kernel:FAMILY"))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    check(run(tmp_path / "mine.py", cwd=elsewhere), mark)


NOTEBOOK = """
import sys, nbclient, nbformat
from nbformat.v4 import new_code_cell, new_notebook
cells = [
    "import jax, jax.numpy as jnp; print(float(jax.jit(lambda x: x + 1)(jnp.ones(3)).sum()))",
    sys.stdin.read(),
]
notebook = new_notebook(cells=[new_code_cell(cell) for cell in cells])
notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "", "language": "python"}
nbclient.NotebookClient(notebook, timeout=60).execute()
outputs = [[o.text for o in cell.outputs if o.get("name") == "stdout"] for cell in notebook.cells]
first, second = map("".join, outputs)
assert first == "6.0\\n", first
print(second)
"""


def test_a_notebook_kernel_that_already_used_jax(
    tmp_path: Path, mark: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("nbclient", reason="needs the dev extra")
    pytest.importorskip("ipykernel", reason="needs the dev extra")
    for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(tmp_path / "jupyter"))
    done = subprocess.run(
        [sys.executable, "-c", NOTEBOOK],
        cwd=tmp_path,
        env=dict(os.environ),
        input=script(),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    check(done.stdout, mark)
