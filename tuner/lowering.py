"""Lowering and compiling for a device that is not there. Imports jax: worker processes only."""

import contextlib
import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import jax
from jax.experimental import topologies
from jax.experimental.mosaic.gpu import core as mosaic

from tuner.search_spaces.architecture import Target


@dataclasses.dataclass(frozen=True)
class TargetDevice(jax.sharding.AbstractDevice):
    """An abstract device that has a compute capability.

    JAX reads it off the abstract device (mosaic/gpu/utils.py, _infer_arch); the stock class has none
    and always means sm_90.
    """

    compute_capability: str = "9.0"


@contextlib.contextmanager
def lowering_for(target: Target) -> Iterator[None]:
    """Tells Pallas which architecture, SM count and shared memory to generate code for."""
    device = TargetDevice(
        device_kind=target.device_kind,
        num_cores=target.sm_count,
        platform="gpu",
        compute_capability=target.architecture.compute_capability,
    )
    mesh = jax.sharding.AbstractMesh((), (), abstract_device=device)
    with jax.sharding.use_abstract_mesh(mesh), mosaic.artificial_shared_memory_limit(target.smem_optin_bytes):
        yield


# What XLA needs to know of a device it compiles for but does not have.
_TOPOLOGY = """gpu_device_info {{
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152
  shared_memory_per_core: {smem_per_sm} threads_per_core_limit: 2048 core_count: {sms} fpus_per_core: 128
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: {bandwidth} l2_cache_size: {l2} clock_rate_ghz: {ghz}
  device_memory_size: 80000000000 shared_memory_per_block_optin: {smem}
  cuda_compute_capability {{ major: {major} minor: {minor} feature_extension: {extension} }}
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  thread_dim_limit_x: 1024 thread_dim_limit_y: 1024 thread_dim_limit_z: 64
  driver_version: "13.0.0" runtime_version: "13.0.0" compile_time_toolkit_version: "13.0.0"
}} platform_name: "CUDA" dnn_version_info {{ major: 9 minor: 10 patch: 0 }}
device_description_str: "{kind}" """


@functools.cache
def compile_only_mesh(target: Target) -> Any:
    """A mesh of one device that can be compiled for without being there."""
    major, minor = target.architecture.compute_capability.split(".")
    text = _TOPOLOGY.format(
        smem_per_sm=target.smem_optin_bytes + 1024,
        sms=target.sm_count,
        bandwidth=int(target.dram_bytes_per_s),
        l2=target.l2_bytes,
        ghz=target.max_sm_clock_mhz / 1000,
        smem=target.smem_optin_bytes,
        major=major,
        minor=minor,
        # wgmma and setmaxnreg need the "a" variant of an architecture (PTX ISA, .target).
        extension="ACCELERATED_FEATURES" if int(major) >= 9 else "NONE",
        kind=target.device_kind,
    )
    topology = topologies.get_topology_desc(platform="cuda", target_config=text, topology="1x1x1")
    return topologies.make_mesh(topology, (1,), ("device",))
