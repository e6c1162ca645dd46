"""The file that PyTorch's ExecutionTraceObserver writes: a tree of calls with their input and
output tensors.

A call is an op if the dispatcher would send it to the level below autograd, where the recorder is.
An op that PyTorch composes of others (`linear`, `dropout`) stands for the ops that it calls. Any
other op counts as one, whatever it calls inside (`addmm` copies its bias). All other calls are
only searched for ops: threads, autograd nodes, modules, annotations.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from coop.trace.content import is_whole
from coop.trace.kineto import load_json
from coop.trace.trace import TraceError

_READS = "1.1."
_TYPES = re.compile(r"Tensor\(((?:[^()]|\([^()]*\))*)\)")
_DTYPES = {"c10::Half": "float16", "c10::BFloat16": "bfloat16", "float": "float32", "double": "float64", "bool": "bool"}
_DTYPES |= {"long int": "int64", "long": "int64", "int": "int32", "short int": "int16", "signed char": "int8"}
_DTYPES |= {"unsigned char": "uint8", "c10::complex<float>": "complex64", "c10::complex<double>": "complex128"}


@dataclass(slots=True, frozen=True)
class Seen:
    """A tensor as one call saw it. Numbers stand for addresses: a later tensor may have the
    same."""

    tensor: int
    storage: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    itemsize: int
    device: str

    @property
    def extent(self) -> int:
        """Bytes from the start of its storage to the tensor's end. The storage has at least
        these."""
        reach = sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))
        return (self.offset + reach + 1) * self.itemsize

    @property
    def geometry(self) -> tuple[Any, ...]:
        return self.offset, self.shape, self.strides, self.dtype

    @property
    def like_a_number(self) -> bool:
        """Whether it is like the tensor that `x * 2` makes of the 2."""
        return not self.shape and self.device == "cpu" and self.dtype in ("double", "long int", "bool")

    def on_meta(self) -> torch.Tensor:
        dtype = getattr(torch, _DTYPES.get(self.dtype, "float32"))
        return torch.empty_strided(self.shape, self.strides, dtype=dtype, device="meta")


@dataclass(slots=True)
class Node:
    """A call."""

    number: int
    name: str
    parent: int
    function: int
    """PyTorch's number of the recorded function; kineto has the same."""
    schema: str
    inputs: list[Any]
    """Arguments. Tensors among them are Seen; those without bytes are None."""
    outputs: list[Any]
    phase: str = "forward"
    children: list["Node"] = field(default_factory=list)

    def walk(self) -> Iterator["Node"]:
        """The node and everything below it, in the order of the calls."""
        waiting = [self]
        while waiting:
            node = waiting.pop()
            yield node
            waiting.extend(reversed(node.children))


def seen_in(things: Any) -> Iterator[Seen]:
    if isinstance(things, Seen):
        yield things
    elif isinstance(things, list):
        for thing in things:
            yield from seen_in(thing)


def read_ops(path: str | Path) -> list[Node]:
    """The ops below autograd, in the order in which they were called. Raises TraceError and
    OSError."""
    content = load_json(path, "an execution trace")
    schema = content.get("schema") if isinstance(content, dict) else None
    if not isinstance(schema, str) or not isinstance(content.get("nodes"), list):
        raise TraceError(f"{path} is not an execution trace of PyTorch: it has no schema and nodes")
    if not schema.startswith(_READS):
        raise TraceError(f"{path} is an execution trace of schema {schema}, and this coop reads {_READS}x")
    try:
        nodes = sorted(map(_node, content["nodes"]), key=lambda node: node.number)
    except TraceError as error:
        raise TraceError(f"{path}: {error}") from None
    except (AttributeError, IndexError, KeyError, OverflowError, RecursionError, TypeError, ValueError) as error:
        raise TraceError(f"{path} has a node that cannot be read: {type(error).__name__} {error}") from None
    known = {node.number: node for node in nodes}
    ops: list[Node] = []
    inside: set[int] = set()
    """Ops, and the calls inside them."""
    for node in nodes:  # callers have lower numbers than what they call
        if node.parent > node.number:
            raise TraceError(f"{path} has a node {node.number} that is called by a later one, {node.parent}")
        caller = known.get(node.parent)
        if caller is not None and caller is not node:
            caller.children.append(node)
            if caller.phase != "forward":
                node.phase = caller.phase
    for node in nodes:
        if node.parent in inside:
            inside.add(node.number)
        elif _is_op(node, path):
            inside.add(node.number)
            ops.append(node)
    if not ops:
        raise TraceError(f"{path} has no ops")
    return ops


def _is_op(node: Node, path: str | Path) -> bool:
    if not node.schema:
        return False
    try:
        composite = _is_composite(node.schema.split("(")[0])
    except (IndexError, RuntimeError, TypeError, ValueError):  # whatever PyTorch's parser says
        raise TraceError(f"{path}: an op has a schema that cannot be read: {node.schema}") from None
    if not composite:
        return True
    given = {seen.storage for seen in seen_in(node.inputs)}
    makes = any(seen.storage not in given for seen in seen_in(node.outputs))
    return makes and not any(below.schema for below in node.walk() if below is not node)


def _is_composite(name: str) -> bool:
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return torch._C._dispatch_has_kernel(name) and bool(has(name, "CompositeImplicitAutograd"))


def _node(content: dict[str, Any]) -> Node:
    attributes = {attribute["name"]: attribute["value"] for attribute in content["attrs"]}
    name, schema = content["name"], attributes["op_schema"]
    if not isinstance(name, str) or not isinstance(schema, str):
        raise TypeError("a name or a schema that is no text")
    if attributes.get("kernel_backend"):
        raise TraceError(
            f"{name} is a kernel of torch.compile, of which the trace does not tell what it writes. "
            "Tip: record the step without torch.compile."
        )
    node = Node(
        number=_number(content["id"]),
        name=name,
        parent=_number(content["ctrl_deps"]),
        function=_number(attributes["rf_id"]),
        schema=schema,
        inputs=_values(content["inputs"]),
        outputs=_values(content["outputs"]),
    )
    if name.startswith("autograd::engine::evaluate_function"):
        node.phase = "backward"
    elif name.startswith("Optimizer.step#"):
        node.phase = "optimizer"
    return node


def _number(value: Any) -> int:
    if not is_whole(value, most=2**64):
        raise ValueError(f"{str(value)[:100]} where a whole number should be")
    return int(value)


def _values(described: dict[str, Any]) -> list[Any]:
    values = []
    for value, shape, kind, strides in zip(
        *(described[key] for key in ("values", "shapes", "types", "strides")), strict=True
    ):
        values.append(_value(value, shape, strides, iter(_TYPES.findall(kind))))
    return values


def _value(value: Any, shape: Any, strides: Any, dtypes: Iterator[str]) -> Any:
    if value == "<None>":
        return None
    if not isinstance(value, list):
        return value
    if len(value) != 6 or not isinstance(value[5], str) or not isinstance(value[0], int):
        if not len(shape) == len(strides) == len(value):
            shape = strides = [[]] * len(value)
        return [_value(*each, dtypes=dtypes) for each in zip(value, shape, strides, strict=True)]
    dtype = next(dtypes, "")
    tensor, storage, offset, elements, itemsize, device = value
    if not storage or not elements:
        return None  # undefined, sparse, or empty: without bytes, one address is as good as another
    if len(shape) != len(strides):
        shape, strides = [elements], [1]
    if not all(map(is_whole, (tensor, storage, offset, elements, itemsize, *shape, *strides))) or 0 in shape:
        raise ValueError(f"a tensor that is none: {str(value)[:100]}, {str(shape)[:100]}, {str(strides)[:100]}")
    return Seen(tensor, storage, offset, tuple(shape), tuple(strides), dtype, itemsize, device)
