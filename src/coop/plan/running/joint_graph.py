"""torch.compile's joint graph of forward and backward, as a graph of coop.

It also predicts the result of torch's partitioner for a choice of ops that must not be recomputed:
the same minimum cut and the same order of the backward graph. These are computed by torch itself,
or by code that follows torch's.

Costs are a roofline (coop/trace/device.py), or the user's own if torch is given an estimator. Not
modelled: the scratch of kernels (except convolutions on a CPU), and values that inductor fuses
away.

Memory is counted by the timeline. What a plan keeps for backward is not taken from it, because only
values that backward reads count: the timeline also has what forward returns.
"""

import functools
import itertools
import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from coop.plan.model.graph import Graph, Node, Value
from coop.plan.model.schedule import profile
from coop.trace.device import load
from coop.trace.tensors import tensors_in


class Joint:
    """The joint graph, in coop's terms, and the partitioner's result for a choice."""

    def __init__(self, joint: fx.Graph, info: Any, candidates: Sequence[fx.Node]) -> None:
        from torch._functorch import config, partitioners

        self.joint, self.info, self.candidates = joint, info, candidates
        self.nodes = [node for node in joint.nodes if node.op != "output"]
        self.order = {node: at for at, node in enumerate(self.nodes)}
        self.tangents = [node for node in self.nodes if _tangent(node)]
        self.fixed = frozenset(i for i, node in enumerate(candidates) if _random(node))
        """Candidates that are saved whatever the budget is."""
        self.free = frozenset(range(len(candidates))) - self.fixed
        self.returned = {node for out in joint.find_nodes(op="output") for node in out.all_input_nodes}
        self.ends = [n for n in self.nodes if n in info.required_bw_nodes and (n in self.returned or _writes(n))]
        """The results of backward."""
        self.default = partitioners.MinCutOptions(*(getattr(config, f"ban_recompute_{reason}") for reason in _REASONS))
        """torch's rules for what is not recomputed, at a budget of 1."""
        self.less = replace(self.default, **dict.fromkeys((f"ban_if_{reason}" for reason in _REASONS[:3]), False))
        """Those that it tries first when the budget is lower."""
        self.least = replace(self.less, ban_if_not_in_allowlist=False)
        """Those that it tries next, with the candidates that a solver saves."""
        if config.aggressive_recomputation:
            self.default = self.less = self.least
        self.number: dict[fx.Node, int] = {}
        """Of the nodes of coop's graph. Views have none."""
        self.holds: dict[fx.Node, tuple[int, ...]] = {}
        """The values that have to be in memory for a reader of a node."""
        self.graph = self.build(config.activation_memory_budget_runtime_estimator)
        costs, names = [node.cost for node in self.graph.nodes], [node.name for node in candidates]
        self.key = repr((self.graph.fingerprint, costs, names, self.default))

    def cut(self, options: Any, kept: Iterable[int] | None = None) -> list[fx.Node]:
        """What torch saves for backward."""
        from torch._functorch.partitioners import solve_min_cut
        from torch.utils._ordered_set import OrderedSet

        allowed = [] if kept is None else sorted(self.free.difference(kept))
        saved, _ = solve_min_cut(self.joint, self.info, options, OrderedSet(self.candidates[i] for i in allowed))
        return saved

    def judge(self, saved: Iterable[fx.Node]) -> tuple[int, int]:
        """Peak and duration of the two graphs that torch makes if this is saved."""
        forward, backward = self.parts(set(saved))
        found = profile(self.graph, [self.number[n] for n in (*forward, *self.tangents, *backward) if n in self.number])
        return found.peak, found.duration

    def parts(self, saved: set[fx.Node]) -> tuple[list[fx.Node], list[fx.Node]]:
        """The nodes of forward and backward, in order, as `_extract_fwd_bwd_modules` and
        `reordering_to_mimic_autograd_engine` give them."""
        ahead = self.above([*saved, *self.info.required_fw_nodes], set())
        forward = [node for node in self.nodes if node in ahead]
        behind = self.above(self.ends, saved)
        listed = [node for node in self.nodes if node in behind and node not in saved and node.op != "placeholder"]
        tangents = set(self.tangents)
        first = next((at for at, n in enumerate(listed) if not tangents.isdisjoint(n.all_input_nodes)), 0)
        backward: list[fx.Node] = []
        done = set(saved)
        for node in listed[first:] + listed[:first]:  # the first ones remain only if just the output reads them
            new = self.above([node], done)
            backward.extend(n for n in sorted(new, key=self.order.__getitem__) if n.op != "placeholder")
            done |= new
        return forward, backward

    def above(self, nodes: Iterable[fx.Node], given: set[fx.Node]) -> set[fx.Node]:
        """These nodes and all that they need, without what is given."""
        found: set[fx.Node] = set()
        stack = list(nodes)
        while stack:
            node = stack.pop()
            if node not in found and node not in given:
                found.add(node)
                stack.extend(node.all_input_nodes)
        return found

    def build(self, estimator: Any) -> Graph:
        """Nodes are numbered in the order in which they run if everything is saved."""
        forward, backward = self.parts(set(self.info.required_fw_nodes))
        nodes: list[Node] = []
        values: list[tuple[int, int]] = []
        users: list[list[int]] = []
        elements: dict[fx.Node, list[tuple[int, ...]]] = {}
        sources = 0
        for node in (*forward, *self.tangents, *backward):
            if node.op != "call_function" and not _tangent(node):
                sources += _bytes(node.meta.get("val"))
                self.holds[node] = ()
                continue
            inputs = tuple(dict.fromkeys(v for read in node.all_input_nodes for v in self.holds.get(read, ())))
            if node.target is operator.getitem:
                read, index = node.args
                parts = elements.get(read, []) if isinstance(read, fx.Node) else []
                self.holds[node] = parts[index] if isinstance(index, int) and parts else inputs
                continue
            if _views(node) and not _writes(node):
                self.holds[node] = inputs if len(inputs) < 2 else self.holds[node.all_input_nodes[0]]
                continue
            here = len(nodes)
            self.number[node] = here
            result = None if _writes(node) else node.meta.get("val")
            made: list[tuple[int, ...]] = []
            for part in result if isinstance(result, list | tuple) else [result]:
                size = _bytes(part)
                made.append((len(values),) if size else ())
                if size:
                    values.append((size, here))
                    users.append([])
            elements[node] = made
            outputs = self.holds[node] = tuple(itertools.chain(*made))
            for value in inputs:
                users[value].append(here)
            again = self.info.is_required_fw(node) and not _random(node)
            cost = _cost(node, estimator) if node.op == "call_function" else 0
            last = None if again else here
            nodes.append(Node(str(node.target), cost, inputs, outputs, scratch=_scratch(node), last=last))
        kept = {v for node in self.returned for v in self.holds.get(node, ())}
        made_values = (Value(size, node, tuple(users[i]), i in kept) for i, (size, node) in enumerate(values))
        return Graph(tuple(nodes), tuple(made_values), (sources,) * (len(nodes) + 1), "joint")

    def crossing(self, sequence: Sequence[int]) -> frozenset[int]:
        """The candidates behind what a plan keeps from forward to backward."""
        begin = min((self.number[n] for n in self.tangents if n in self.number), default=len(sequence))
        at = sequence.index(begin) if begin in sequence else len(sequence)
        made, needed = set[int](), set[int]()
        for number in sequence[at:]:
            needed.update(v for v in self.graph.nodes[number].inputs if v not in made)
            made.update(self.graph.nodes[number].outputs)
        index = {node: i for i, node in enumerate(self.candidates)}
        found, seen = set[int](), set[fx.Node]()
        stack = [n for n in self.number if not needed.isdisjoint(self.holds[n])]
        # If no candidate is kept but a value made from it, the candidate is banned: then torch cuts
        # at one of the two.
        while stack:
            node = stack.pop()
            if node in index:
                found.add(index[node])
            elif node not in seen:
                stack.extend(node.all_input_nodes)
            seen.add(node)
        return frozenset(found) & self.free


_REASONS = ("used_far_apart", "long_fusible_chains", "materialized_backward", "not_in_allowlist", "reductions")


def _tangent(node: fx.Node) -> bool:
    return node.op == "placeholder" and "tangents" in str(node.target)


def _random(node: fx.Node) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def _views(node: fx.Node) -> bool:
    """Whether it is a view: by the schema, or by what the op did when it was traced (the schema of
    `_unsafe_view` does not say so)."""
    returns = getattr(getattr(node.target, "_schema", None), "returns", ())
    if returns and all(result.alias_info is not None for result in returns):
        return True
    storages = {_storage(read.meta.get("val")) for read in node.all_input_nodes} - {None}
    return _storage(node.meta.get("val")) in storages


def _writes(node: fx.Node) -> bool:
    return bool(getattr(getattr(node.target, "_schema", None), "is_mutable", False))


def _storage(value: Any) -> int | None:
    return value.untyped_storage()._cdata if isinstance(value, torch.Tensor) else None


def _bytes(value: Any) -> int:
    return math.prod(map(_hint, value.shape)) * value.element_size() if isinstance(value, torch.Tensor) else 0


def _scratch(node: fx.Node) -> int:
    """On CPUs, convolutions work on copies in a layout of their own. The factor is measured."""
    name = getattr(getattr(node.target, "overloadpacket", None), "__name__", "")
    if name not in ("convolution", "convolution_backward") or not node.all_input_nodes[0].meta["val"].is_cpu:
        return 0
    first, second = (_bytes(read.meta["val"]) for read in node.all_input_nodes[:2])
    return first + second if name == "convolution_backward" else max(first + second, _bytes(node.meta["val"]))


def _hint(size: Any) -> int:
    from torch.fx.experimental.symbolic_shapes import optimization_hint

    return size if isinstance(size, int) else int(optimization_hint(size, fallback=4096))


def _cost(node: fx.Node, estimator: Any) -> int:
    """Nanoseconds, or a million of whatever the user's estimator counts in."""
    if estimator != "flops":
        from torch._functorch.partitioners import estimate_runtime

        return max(round(1e6 * float(estimate_runtime(node))), 1)

    def plain(argument: Any) -> Any:
        """Without symbols, and without a fake mode."""
        if isinstance(argument, fx.Node):
            argument = argument.meta.get("val")
        if isinstance(argument, torch.Tensor):
            shape = [_hint(size) for size in argument.shape]
            return torch.empty(shape, dtype=argument.dtype, device="meta")
        return _hint(argument) if isinstance(argument, torch.SymInt) else argument

    args, kwargs = fx.map_arg((node.args, node.kwargs), plain)
    result = torch.utils._pytree.tree_map(plain, node.meta.get("val"))
    gpu = any(tensor.is_cuda for tensor in tensors_in([read.meta.get("val") for read in node.all_input_nodes]))
    op = node.target if isinstance(node.target, torch._ops.OpOverload) else torch.ops.aten.clone.default
    return _device("a100" if gpu else "cpu").cost(op, args, kwargs, result, False)


_device = functools.cache(load)
