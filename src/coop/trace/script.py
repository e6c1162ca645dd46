"""Records one step of a script that is not written for it.

A step goes from the end of one `optimizer.step()` to the end of the next; the first begins with
the script. So gradients that are dropped at the beginning of the loop are sources, made by the
step before.
"""

from collections.abc import Callable
from typing import Any

from coop.run import run_main
from coop.trace.recorder import Cost, Recorder, Updates, measured
from coop.trace.recording import assemble
from coop.trace.trace import Trace


class ScriptRecorder:
    def __init__(
        self,
        step: int,
        recorded: Callable[[Trace], None],
        *,
        cost: Cost = measured,
        device: str = "measured",
        about: dict[str, Any] | None = None,
    ) -> None:
        """`recorded` gets the trace at the end of the step. If it raises, the script's
        `optimizer.step()` raises. `cost`, `device` and `about` are the trace's."""
        self.steps = 0
        """The number of steps that have ended."""
        self._step = step
        self._recorded = recorded
        self._cost = cost
        self._device = device
        self._about = {"step": step} | (about or {})
        self._path = ""
        self._updates = Updates(self._ended)
        self._before: Recorder | None = None
        self._recorder: Recorder | None = None
        self._active = False

    @property
    def done(self) -> bool:
        return self.steps >= self._step

    def run(self, path: str, source: bytes, arguments: list[str]) -> None:
        self._path = path
        with self._updates:
            self._start()
            try:
                run_main(path, source, arguments)
            finally:
                self._stop()

    def _ended(self) -> None:
        if self.done:
            return
        self.steps += 1
        self._stop()
        self._start()
        if self.done and self._recorder is not None:
            self._recorded(assemble(self._recorder, self._before, self._path, self._device, self._about))

    def _start(self) -> None:
        """Records the step before too, to know which tensors it leaves to this one."""
        if self._step - 2 <= self.steps < self._step:
            self._before, self._recorder = self._recorder, Recorder(self._updates, self._cost)
            self._recorder.__enter__()
            self._active = True

    def _stop(self) -> None:
        if self._active and self._recorder is not None:
            self._recorder.__exit__(None, None, None)
        self._active = False
