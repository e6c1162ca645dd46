"""A solver for torch.compile's activation memory budget that looks at the peak of the step.

    torch._functorch.config.activation_memory_budget = 0.5
    torch._functorch.config.activation_memory_budget_solver = coop.plan.compile_solver("auto")
    step = torch.compile(step)

torch's own solvers bound the bytes that are saved for backward. What backward recomputes has to be
in memory too, so their peak may rise when the budget falls. Here the budget is a position between
the lowest peak that was found (0) and the peak of torch's default partition (1), for forward and
backward together.

- The partitioner can do less than a plan: in backward, a value that was not saved is recomputed
  once, and stays to its last use. A solver only chooses which expensive ops (products,
  convolutions, reductions) must not be recomputed. Then the partitioner saves the least, by a
  minimum cut. So a choice is judged by torch's result: its cut, and then the order of its backward
  graph, in coop's graph (joint_graph.py).
- Choices come from a planner, for several budgets: what it keeps from forward to backward is saved.
  Other choices come from torch's own solver, from regular patterns, and from changes to the best so
  far.
- Each budget takes the cheapest choice that fits, from one set for all budgets. So in this model
  neither the peak nor the speed falls when the budget rises. The set is kept until the process
  ends.
- Ops that draw random numbers are never recomputed.

torch calls no solver at budgets 0 and 1, nor when its minimum cuts fit without recomputing an
expensive op. A step of several compiled graphs has the peak of all of them; each is planned on its
own.
"""

import hashlib
import itertools
import random
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import fx

from coop.plan.model.graph import Graph
from coop.plan.model.plan import PlanError, floor
from coop.plan.planners import PLANNERS, solve_sequence
from coop.plan.running.joint_graph import Joint

if TYPE_CHECKING:
    from torch._inductor.custom_graph_pass import CustomKnapsackSolver

_TRIES = 400
"""The most changes that are tried. With a limit, small graphs give the same answer each time."""
_LEVELS = (0.02, 0.05, 0.1, 0.2, 0.4, 0.7)
"""Budgets for the planner, between the floor and the peak when everything is saved; and for
knapsacks, as shares of all that torch would save."""
_PLANNER = 0.5
"""The planner's share of the time."""


def compile_solver(planner: str = "auto", *, time_limit: float = 10.0) -> "CustomKnapsackSolver":
    """For `torch._functorch.config.activation_memory_budget_solver`. `time_limit`: seconds for
    each graph that is compiled."""
    if planner not in PLANNERS:
        raise ValueError(f"there is no planner {planner!r}; the known ones are {', '.join(PLANNERS)}")
    if not time_limit > 0:
        raise ValueError(f"a time limit is a number of seconds above 0, not {time_limit}")
    from torch._inductor.custom_graph_pass import CustomKnapsackSolver  # takes seconds, which `import coop` must not

    CustomKnapsackSolver.register(_Solver)
    return _Solver(planner, float(time_limit))  # type: ignore[return-value]


@dataclass(frozen=True)
class _Solver:
    planner: str
    time_limit: float

    def __call__(
        self, memory: list[float], joint_graph: fx.Graph, max_memory: float, node_info: Any, candidates: list[fx.Node]
    ) -> tuple[list[int], list[int]]:
        """Which of the nodes that could be recomputed are saved, and which need not be."""
        joint = Joint(joint_graph, node_info, candidates)
        key = (self, joint.key)
        if key not in _known:
            _known[key] = _explore(joint, memory, self.planner, self.time_limit)
        kept = _known[key].choose(max_memory).kept | joint.fixed
        return sorted(kept), [i for i in range(len(candidates)) if i not in kept]

    def uuid(self) -> Any:
        """A key for torch's caches: the choice of this solver must not be used for another one."""
        sources = b"".join(path.read_bytes() for path in sorted(Path(__file__).parents[1].rglob("*.py")))
        return "coop", hashlib.sha256(sources).hexdigest(), self.planner, self.time_limit


@dataclass(frozen=True)
class _Choice:
    kept: frozenset[int]
    """Candidates that are saved. The others may be recomputed."""
    peak: int
    duration: int


@dataclass(frozen=True)
class _Front:
    choices: tuple[_Choice, ...]
    """Each takes less time and more memory than the one before."""
    whole: int
    """The peak at a budget of 1."""

    def choose(self, share: float) -> _Choice:
        least = self.choices[0].peak
        target = least + share * max(self.whole - least, 0)
        return [choice for choice in self.choices if choice.peak <= target or choice is self.choices[0]][-1]


_known: dict[tuple[_Solver, str], _Front] = {}


# --- the search --------------------------------------------------------------------------------------------------------


def _explore(joint: Joint, memory: list[float], planner: str, time_limit: float) -> _Front:
    begin = time.monotonic()
    known: dict[frozenset[int], _Choice] = {}

    def judge(kept: frozenset[int]) -> None:
        if kept not in known:
            known[kept] = _Choice(kept, *joint.judge(joint.cut(joint.least, kept)))

    judge(joint.free)
    torchs = [joint.judge(joint.cut(options))[0] for options in (joint.default, joint.less)]
    # torch makes these partitions at budgets for which it calls no solver. No answer may have a
    # higher peak.
    most = min(known[joint.free].peak, *torchs)
    for sequence in _planned(joint.graph, planner, known[joint.free].peak, _PLANNER * time_limit):
        judge(joint.crossing(sequence))
    ordered = sorted(joint.free, key=lambda i: joint.order[joint.candidates[i]])
    rng = random.Random(0)
    changes = (_changed(_front(known, most), ordered, rng) for _ in range(_TRIES))
    for kept in itertools.chain(_patterns(joint, memory, ordered), changes):
        if time.monotonic() - begin < time_limit:
            judge(kept)
    return _Front(tuple(_front(known, most)), torchs[0])


def _front(known: dict[frozenset[int], _Choice], most: int) -> list[_Choice]:
    """From the lowest peak to the shortest duration, without choices that are worse in both."""
    found: list[_Choice] = []
    for choice in sorted(known.values(), key=lambda choice: (choice.peak, choice.duration, sorted(choice.kept))):
        if not found or (choice.peak <= most and choice.duration < found[-1].duration):
            found.append(choice)
    return found


def _planned(graph: Graph, planner: str, most: int, seconds: float) -> Iterable[list[int]]:
    least = floor(graph)[0]
    for level in _LEVELS:
        try:
            budget = int(least + level * (most - least))
            yield solve_sequence(graph, budget, planner, time_limit=seconds / len(_LEVELS))
        except PlanError:
            continue  # not in that budget, or not in that time


def _patterns(joint: Joint, memory: list[float], ordered: list[int]) -> Iterable[frozenset[int]]:
    """No candidate; those that torch's own solver would save; each second, third, ..."""
    from torch._functorch._activation_checkpointing.knapsack import dp_knapsack

    yield frozenset()
    costs = [float(joint.graph.nodes[joint.number[n]].cost) if n in joint.number else 1.0 for n in joint.candidates]
    for level in _LEVELS:
        yield frozenset(dp_knapsack(memory, costs, level)[1]) & joint.free
    for stride in (2, 3, 4, 8):
        yield frozenset(ordered[stride - 1 :: stride])


def _changed(front: list[_Choice], ordered: list[int], rng: random.Random) -> frozenset[int]:
    """One of the best so far with a run of candidates switched, or two of them crossed."""
    choice = front[0] if rng.random() < 0.25 else rng.choice(front)  # the first is the lowest peak
    begin = rng.randrange(len(ordered) + 1)
    if len(front) > 1 and rng.random() < 0.3:
        head = frozenset(ordered[:begin])
        return (choice.kept & head) | (rng.choice(front).kept - head)
    run = frozenset(ordered[begin : begin + rng.choice((1, 1, 1, 2, 3, max(len(ordered) // 8, 1)))])
    return choice.kept ^ run if rng.random() < 0.7 else choice.kept | run
