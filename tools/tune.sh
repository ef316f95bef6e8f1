#!/bin/sh
# usage: tune.sh [SWEEP OPTION...]
# The main job: kernels are timed where there is an NVIDIA GPU; elsewhere they are compiled and ordered by prediction.
set -eu
cd "$(dirname "$0")/.."
python=$(tools/find_python.sh)

# Exits 0 and says which GPU there is, or 1 and says why there is none. NVML is asked, for CUDA would need a context.
gpu() {
    "$python" -I -c '
import ctypes, os, sys

def none(why):
    print(why)
    sys.exit(1)

first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
if first in ("", "-1"):
    none("CUDA_VISIBLE_DEVICES hides every GPU")
try:
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
except OSError:
    none("no NVIDIA driver is installed")
count, device, name = ctypes.c_uint(), ctypes.c_void_p(), ctypes.create_string_buffer(96)
major, minor = ctypes.c_int(), ctypes.c_int()
if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) or not count.value:
    none("the NVIDIA driver finds no GPU")
if first.isdigit():
    missing = nvml.nvmlDeviceGetHandleByIndex_v2(int(first), ctypes.byref(device))
else:
    missing = nvml.nvmlDeviceGetHandleByUUID(first.encode(), ctypes.byref(device))
if missing or nvml.nvmlDeviceGetName(device, name, 96):
    none(f"the NVIDIA driver finds no GPU {first}")
if nvml.nvmlDeviceGetCudaComputeCapability(device, ctypes.byref(major), ctypes.byref(minor)):
    none("the NVIDIA driver does not answer")
if (major.value, minor.value) != (9, 0):
    none(f"{name.value.decode()} is sm_{major.value}{minor.value}, and the matmul so far is for sm_90")
print(name.value.decode() + (f" and {count.value - 1} more" if count.value > 1 else ""))
'
}

if found=$(gpu); then
    echo "make tune: there is a GPU ($found), so configurations are timed on it" >&2
    venv=.venv-cuda13
    set -- --budget 120s "$@"
else
    echo "make tune: no GPU to time on ($found), so configurations are compiled for sm_90 and times predicted" >&2
    venv=.venv-deviceless
    set -- --deviceless --arch sm_90 --trials 24 "$@"
fi
tools/setup.sh "${venv#.venv-}"
exec "$venv/bin/tuner" sweep matmul m=4096 n=8192 k=4096 dtype=bfloat16 "$@"
