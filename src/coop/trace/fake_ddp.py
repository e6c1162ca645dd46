"""DDP whose reducer gets along with a fake group and fake tensors.

1. A real Work tells the reducer what was reduced, and a fake one does not. A hook does it in its
   place. So a gradient is copied into its bucket, where without a hook it is multiplied into it.
2. After the first step the reducer sorts its buckets by when gradients were ready, and sends the
   order by pointers. Here they are that way from the beginning: the last parameter is first.
3. Nobody compares parameters with other ranks, or sends them.
"""

import functools
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import (
    _DEFAULT_FIRST_BUCKET_BYTES,
    GradBucket,
    Reducer,
    _compute_bucket_assignment_by_size,
)
from torch.nn.parallel import distributed as parallel

_CAP = 25.0  # MiB, unless a program asks for another


def replaced() -> list[tuple[Any, str, Any]]:
    """Owner, name and value of what has to be replaced."""
    ddp = parallel.DistributedDataParallel
    init, register = ddp.__init__, ddp.register_comm_hook
    assign = _compute_bucket_assignment_by_size
    limits: list[int] = []

    @functools.wraps(init)
    def __init__(
        self: Any, module: Any, device_ids: Any = None, output_device: Any = None, *args: Any, **kwargs: Any
    ) -> None:
        asked = kwargs.get("bucket_cap_mb")
        cap = int((asked or _CAP) * 2**20)
        limits[:] = [cap if asked else _DEFAULT_FIRST_BUCKET_BYTES, cap]
        init(self, module, None, None, *args, **kwargs)  # its parameters lie on the CPU
        register(self, None, _reduce)

    def assign_in_order(tensors: list[torch.Tensor], asked: list[int], sparse: list[bool], *rest: Any) -> Any:
        if asked != [sys.maxsize]:  # this program does not sort them again
            return assign(tensors, asked, sparse, *rest)
        last = len(tensors) - 1
        buckets, sizes = assign(tensors[::-1], limits, sparse[::-1], *rest)
        mapped = [[last - index for index in bucket] for bucket in buckets]
        return mapped[::-1], sizes[::-1]  # DDP turns them around

    return [
        (ddp, "__init__", __init__),
        (ddp, "register_comm_hook", _refuse_hook),
        (dist, "_compute_bucket_assignment_by_size", assign_in_order),
        (dist, "_verify_params_across_processes", lambda *_: None),
        (parallel, "_sync_module_states", lambda *_, **__: None),
        (Reducer, "_rebuild_buckets", lambda _: False),
    ]


def _reduce(_: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    dist.all_reduce(bucket.buffer(), async_op=True)
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


def _refuse_hook(self: Any, state: object, hook: Any) -> None:
    raise NotImplementedError(
        f"the communication hook {getattr(hook, '__name__', hook)} reads what was reduced, which a group of one rank "
        "cannot tell. Tip: trace the script without it"
    )
