"""What a run has shown: for each step, the states of its operands before it and the events during
it."""

import zlib

import torch

import coop
from hunt.program import Step
from hunt.scenes import REGISTERS, Machine


class Features:
    """Watches a run; `found` are numbers for (step, states, events)."""

    def __init__(self, memory: coop.Memory, tiny: int) -> None:
        self.memory = memory
        self.tiny = tiny
        self.found: set[int] = set()
        self._states = ""

    def __call__(self, machine: Machine, step: Step, after: bool) -> None:
        if not after:
            self.memory.events()
            self._states = ",".join(self._state(machine.r[n % REGISTERS]) for n in step[1:4])
            return
        events = sorted({event.kind for event in self.memory.events()} - {"place", "bind", "free", "search"})
        self.found.add(zlib.crc32(f"{step[0]} {self._states} {' '.join(events)}".encode()))

    def _state(self, tensor: torch.Tensor) -> str:
        if tensor.layout is not torch.strided or not tensor.numel():
            return "other"
        return "tiny" if tensor.nbytes <= self.tiny else self.memory.state(tensor)
