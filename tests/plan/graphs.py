"""Graphs for testing the planners."""

import random

from coop.plan.model.graph import from_trace, make
from coop.trace import Op, Output, Release, Trace


def chain(layers):
    """Forward 0..layers-1, loss, backward: each backward node reads the forward value of its layer
    and the gradient so far."""
    n = 2 * layers + 1
    edges = [(i, i + 1) for i in range(n - 1)] + [(i, n - 1 - i) for i in range(layers)]
    return make([1] * n, [1] * n, edges)


def layered(nodes, edges, seed, reach=6):
    """Each node reads one of those shortly before it. Further edges, costs and sizes are random."""
    chance = random.Random(seed)
    found = {(chance.randrange(max(0, i - reach), i), i) for i in range(1, nodes)}
    while len(found) < edges:
        found.add(tuple(sorted(chance.sample(range(nodes), 2))))
    return make(*([chance.randint(1, 100) for _ in range(nodes)] for _ in range(2)), found)


def in_place(layers):
    """Each layer: a product, overwritten by an activation that backward reads."""
    instructions, held, tensor = [], [], 0
    for layer in range(layers):
        instructions.append(Op("mm", (tensor - 1,) if layer else (), (Output(tensor, 1 << 20),), 50))
        instructions.append(Op("relu_", (tensor,), (Output(tensor + 1, 0, 0),), 1, writes=(0,)))
        instructions.append(Release(tensor))
        held.append(tensor + 1)
        tensor += 2
    for value in reversed(held):
        instructions += [Op("backward", (value,), (), 50), Release(value)]
    return from_trace(Trace(instructions))


def small(seed):
    """A random step of seven ops, some of them in place."""
    chance = random.Random(seed)
    instructions, alive = [], []
    for tensor in range(7):
        inputs = tuple(chance.sample(alive, min(len(alive), chance.randint(1, 3))))
        if inputs and chance.random() < 0.25:
            instructions.append(Op("in_place_", inputs, (Output(tensor, 0, 0),), chance.randint(1, 9), writes=(0,)))
            instructions.append(Release(inputs[0]))
            alive.remove(inputs[0])
        else:
            size, once = 64 * chance.randint(1, 6), chance.random() < 0.1
            instructions.append(
                Op(
                    "op",
                    inputs,
                    (Output(tensor, size),),
                    chance.randint(1, 9),
                    scratch=64 * (tensor % 2),
                    replayable=not once,
                )
            )
        alive.append(tensor)
    instructions += [Release(value) for value in alive if chance.random() < 0.7]
    return from_trace(Trace(instructions))


LARGE = layered(120, 290, 4)
