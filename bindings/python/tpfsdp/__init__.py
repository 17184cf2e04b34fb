# SPDX-License-Identifier: Apache-2.0
"""tpfsdp: Fully Sharded Data Parallel training for any host framework.

    import numpy as np, tpfsdp

    def train(rank: tpfsdp.Context) -> None:
        model = MLP()                        # tpfsdp.Module with forward and backward in NumPy, JAX, ...
        for layer in model.children():
            tpfsdp.fully_shard(layer)
        tpfsdp.fully_shard(model)
        ...
        model.run_backward(model(x) - y)     # then param.grad is there, and param.shard may be written

    tpfsdp.run_ranks(4, train)

Names and signatures are those of ``tensorplay.distributed.fsdp`` and PyTorch. Arrays given out are views of the
library's memory; nothing is copied.
"""

from .version import __version__, version_text  # first: refuses a library that does not fit
from .context import Context, current_context
from .errors import (
    AbiMismatch,
    Aborted,
    BackendFailed,
    BackendUnavailable,
    Busy,
    CallbackFailed,
    Cancelled,
    Corrupt,
    Forked,
    GroupError,
    Internal,
    InvalidArgument,
    InvalidHandle,
    InvalidState,
    IoFailure,
    MachineError,
    Mismatch,
    NonFinite,
    NotFound,
    OutOfMemory,
    PeerLost,
    ProgramError,
    RecreateError,
    Remote,
    StepError,
    Timeout,
    TpfsdpError,
    Unsupported,
)
from .fsdp_module import FSDPModule, Switches, UnshardHandle
from .fully_shard import fully_shard, register_fsdp_forward_method
from .group import Group
from .host_memory import HostMemory
from .manual import end_backward, fail_forward, post_backward, post_forward, pre_backward, pre_forward
from .mesh import DeviceMesh, init_device_mesh
from .mixed_precision import MixedPrecisionPolicy
from .module import Module, ModuleList
from .parameter import Parameter, RemovableHandle, ShardInfo
from .ranks import run_ranks
from .scope import no_grad, prepare, reduce_gradients, scope, shards_write
from .tensor import Tensor, from_dlpack
from .trace import Counters, EventKind, TraceEvent
from .unit import Granule, Layout, MemoryInfo, ShardedState, Storage, TrainingState, UnitInfo, UnshardMode
from .work import Work

__all__ = [name for name in dir() if not name.startswith("_")] + ["__version__"]
