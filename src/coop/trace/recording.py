"""From running steps to a trace.

Two consecutive steps are recorded, and the second is the trace. Only the first tells which of its
sources were made by the step before (gradients that are dropped late, a hidden state) and which
simply still exist.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.distributed

from coop import _C
from coop.trace.recorder import Cost, Recorder, Updates, held_at_end, measured
from coop.trace.timing import in_arena
from coop.trace.trace import FRESH, Instruction, Op, Output, Release, Source, Trace, storages_of


def record(
    step: Callable[[], Any], *, warm_up: int = 1, name: str = "", cost: Cost = measured, device: str = "measured"
) -> Trace:
    """The trace of one call of `step`.

    `warm_up` steps run before, so that the optimizer has its state. Then two are recorded, and the
    trace is that of the second. Costs are the times that the ops take in an arena: to measure
    them, a few more steps run, as far as there are batches for them (timing.py).
    """
    if _C.is_open():
        raise RuntimeError("a step is recorded outside of a coop budget: inside, its tensors would count as exposed")
    for _ in range(warm_up):
        step()
    with Updates() as updates:
        with Recorder(updates, cost) as before:
            step()
        with Recorder(updates, cost) as recorder:
            step()
    costs = _costs(recorder, before)
    if cost is measured:
        costs = in_arena(step, recorder.ops, costs)
    return assemble(recorder, before, name, device, costs=costs)


def assemble(
    recorder: Recorder,
    before: Recorder | None,
    name: str,
    device: str,
    about: dict[str, Any] | None = None,
    *,
    costs: list[int] | None = None,
) -> Trace:
    """The trace of the recorded step; `before` has recorded the step before it."""
    carries = _carried(recorder, before) if before else {}
    sources, rest = _sorted(recorder)
    cost_of = iter(_costs(recorder, before) if costs is None else costs)
    numbers: dict[int, int] = {}

    def number(tensor: int) -> int:
        return numbers.setdefault(tensor, len(numbers))

    instructions: list[Instruction] = []
    for instruction in [*sources, *rest]:
        match instruction:
            case Source(tensor):
                instruction = replace(instruction, tensor=number(tensor))
            case Release(tensor):
                instruction = Release(number(tensor))
            case Op():
                outputs = tuple(replace(output, tensor=number(output.tensor)) for output in instruction.outputs)
                inputs = tuple(map(number, instruction.inputs))
                instruction = replace(instruction, inputs=inputs, outputs=outputs, cost=next(cost_of))
        instructions.append(instruction)
    for position, source in enumerate(sources):
        if source.tensor in carries:
            successor = numbers[carries[source.tensor]]
            instructions[position] = replace(source, tensor=numbers[source.tensor], carries=successor)
    facts = {"torch": torch.__version__, **_rank(), **(about or {})}
    return Trace(_accumulated_in_place(instructions), name, device, facts)


def _rank() -> dict[str, int]:
    """Whose step it is, if there are several ranks."""
    group = torch.distributed
    if not group.is_available() or not group.is_initialized():
        return {}
    return {"rank": group.get_rank(), "world_size": group.get_world_size()}


def _costs(recorder: Recorder, before: Recorder | None) -> list[int]:
    """The costs of its ops: the lower of the two, if both steps did the same."""
    if before is None or not _repeated(recorder, before):
        return [op.cost for op in recorder.ops]
    return [min(op.cost, other.cost) for op, other in zip(recorder.ops, before.ops, strict=True)]


def _sorted(recorder: Recorder) -> tuple[list[Source], list[Instruction]]:
    """Sources that existed before the first op come first; those that the step does not need are
    left out."""
    wanted = recorder.sources()
    adopted = set(recorder.adopted.values())
    foreign = adopted.difference(wanted)
    sources: dict[int, Source] = {}
    rest: list[Instruction] = []
    for instruction in recorder.instructions:
        if isinstance(instruction, Source) and instruction.tensor in adopted:
            sources[instruction.tensor] = instruction
        elif not isinstance(instruction, Release) or instruction.tensor not in foreign:
            rest.append(instruction)
    return [sources[tensor] for tensor in wanted], rest


def _carried(recorder: Recorder, before: Recorder) -> dict[int, int]:
    """For each source, the tensor that takes its place in the following step."""
    held = set(held_at_end(recorder))
    used = set(before.sources())
    repeated = _repeated(recorder, before)
    carries: dict[int, int] = {}
    for address, tensor in recorder.adopted.items():
        old, now = before.storages.get(address), recorder.storages.get(address)
        if old is None:
            continue
        if old.source is not None:
            stays = old.source in used and now is not None and now.source == tensor
            successor = now.current if now is not None and stays else None
        elif repeated and old.maker is not None:
            op, output = old.maker
            successor = recorder.ops[op].outputs[output].tensor
        else:
            successor = None
        if successor is not None and successor in held:
            carries[tensor] = successor
    return carries


def _repeated(recorder: Recorder, before: Recorder) -> bool:
    return _signature(recorder) == _signature(before)


def _signature(recorder: Recorder) -> list[Any]:
    return [(op.name, len(op.inputs), tuple((o.bytes, o.alias) for o in op.outputs)) for op in recorder.ops]


def _accumulated_in_place(instructions: list[Instruction]) -> list[Instruction]:
    """Undoes a change that recording causes: autograd accumulates gradients in place, except under
    a dispatch mode.

    It overwrites the sum so far if nothing else holds it. Such a sum is the first operand of an
    addition in backward, is no view (a view shares its storage with its base), and dies right
    after the addition.
    """
    storage_of, sizes = storages_of(instructions)
    references = [0] * len(sizes)
    done = list(instructions)
    views: set[int] = set()
    candidate, overwritten = -1, -1
    for position, instruction in enumerate(instructions):
        if isinstance(instruction, Source):
            references[storage_of[instruction.tensor]] += 1
        elif isinstance(instruction, Op):
            for output in instruction.outputs:
                references[storage_of[output.tensor]] += 1
                if output.alias != FRESH and output.alias not in instruction.writes:
                    views.add(output.tensor)
            candidate = -1
            if instruction.name == "aten::add.Tensor" and instruction.phase == "backward":
                overwritten, *others = [storage_of[tensor] for tensor in instruction.inputs]
                alone = others and overwritten not in others and instruction.inputs[0] not in views
                if alone and instruction.outputs[0].bytes == sizes[overwritten]:
                    candidate = position
        elif isinstance(instruction, Release):
            storage = storage_of[instruction.tensor]
            references[storage] -= 1
            addition = instructions[candidate]
            if candidate >= 0 and storage == overwritten and not references[storage] and isinstance(addition, Op):
                sum = Output(addition.outputs[0].tensor, 0, 0)
                done[candidate] = replace(addition, name="aten::add_.Tensor", outputs=(sum,), writes=(0,))
    return done
