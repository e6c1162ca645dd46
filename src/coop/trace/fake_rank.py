"""One rank of a group whose other ranks do not exist.

While a FakeRank is entered, this process is one rank of many: torchrun's variables say so, and the
default process group is PyTorch's "fake" backend, whose collectives return at once and leave their
tensors as they are. So it is of use on tensors without bytes, for shapes and sizes, and for nothing
else. A script that calls `init_process_group` gets this group, whatever backend it names, and so do
all groups that it makes.

A DeviceMesh computes with small tensors of rank numbers and needs their values: inside of its
methods tensors are real.
"""

import functools
import os
import sys
import types
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch.distributed as dist
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.distributed import device_mesh, distributed_c10d
from torch.distributed._tools import fake_collectives  # noqa: F401  gives c10d's ops a form without bytes
from torch.testing._internal.distributed.fake_pg import FakeStore

from coop.trace import fake_ddp
from coop.trace.replaced import Replaced

_PORT = 29500


class FakeRank:
    def __init__(self, rank: int, world_size: int, per_node: int | None = None) -> None:
        """`per_node`: ranks in a machine; None: all of them."""
        if not 0 <= rank < world_size:
            raise ValueError(f"there is no rank {rank} among {world_size}: they are 0 to {world_size - 1}")
        self.rank = rank
        self.world_size = world_size
        self.per_node = min(per_node or world_size, world_size)
        self._within = ExitStack()
        self._initialized = False

    @property
    def local_rank(self) -> int:
        return self.rank % self.per_node

    def __enter__(self) -> "FakeRank":
        if dist.is_initialized():
            raise RuntimeError("this process is a rank of a group already: a fake rank needs a process of its own")
        with ExitStack() as within:
            within.enter_context(_Environment(self._variables()))
            within.enter_context(Replaced([*self._groups(), *_meshes(), *fake_ddp.replaced()]))
            self._within = within.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()
        self._within.close()

    def _variables(self) -> dict[str, str]:
        """What torchrun tells each of its processes."""
        nodes = -(-self.world_size // self.per_node)
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_RANK": str(self.local_rank),
            "LOCAL_WORLD_SIZE": str(self.per_node),
            "GROUP_RANK": str(self.rank // self.per_node),
            "GROUP_WORLD_SIZE": str(nodes),
            "ROLE_RANK": str(self.rank),
            "ROLE_WORLD_SIZE": str(self.world_size),
            "MASTER_ADDR": "localhost",
            "MASTER_PORT": str(_PORT),
        }

    def _groups(self) -> list[tuple[Any, str, Any]]:
        init, helper = distributed_c10d.init_process_group, distributed_c10d._new_process_group_helper

        @functools.wraps(init)
        def init_process_group(*args: Any, **kwargs: Any) -> None:
            for name, own in (("rank", self.rank), ("world_size", self.world_size)):
                asked = kwargs.get(name, -1)
                if asked not in (-1, None, own):
                    raise ValueError(f"init_process_group has {name}={asked}, and the trace is asked for with {own}")
            with unset_fake_temporarily():
                init("fake", rank=self.rank, world_size=self.world_size, store=FakeStore())

        @functools.wraps(helper)
        def new_process_group_helper(
            group_size: int, group_rank: int, ranks: Any, backend: Any, store: Any, *args: Any, **kwargs: Any
        ) -> Any:
            for own in ("backend_options", "device_id"):
                kwargs.pop(own, None)
            with unset_fake_temporarily():
                return helper(group_size, group_rank, ranks, "fake", store, *args, **kwargs)

        return [
            *_everywhere("init_process_group", init, init_process_group),
            (distributed_c10d, "_new_process_group_helper", new_process_group_helper),
        ]


class _Environment:
    def __init__(self, variables: dict[str, str]) -> None:
        self._variables = variables
        self._before: dict[str, str | None] = {}

    def __enter__(self) -> None:
        self._before = {name: os.environ.get(name) for name in self._variables}
        os.environ.update(self._variables)

    def __exit__(self, *error: object) -> None:
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _meshes() -> list[tuple[Any, str, Any]]:
    """DeviceMesh on real tensors, of devices that this machine has: its own processor."""
    mesh, init = device_mesh.DeviceMesh, device_mesh.init_device_mesh
    values: list[tuple[Any, str, Any]] = []
    for name, member in vars(mesh).items():
        if isinstance(member, types.FunctionType):
            values.append((mesh, name, _real(member)))
        elif isinstance(member, staticmethod | classmethod):
            values.append((mesh, name, type(member)(_real(member.__func__))))
        elif isinstance(member, property) and member.fget is not None:
            values.append((mesh, name, property(_real(member.fget), member.fset)))
    return values + _everywhere("init_device_mesh", init, _real(init))


def _real(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        args = tuple("cpu" if isinstance(arg, str) and arg == "cuda" else arg for arg in args)
        if kwargs.get("device_type") == "cuda":
            kwargs["device_type"] = "cpu"
        with unset_fake_temporarily():
            return function(*args, **kwargs)

    return wrapper


def _everywhere(name: str, value: Any, other: Any) -> list[tuple[Any, str, Any]]:
    """Modules that have imported it by name have it, too."""
    modules = [module for module in list(sys.modules.values()) if isinstance(module, types.ModuleType)]
    return [(module, name, other) for module in modules if vars(module).get(name) is value]
