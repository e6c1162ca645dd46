"""Graphs that the planners are tried on."""

import random

from coop.plan.graph import make


def chain(layers):
    """Forward 0..layers-1, loss, backward: each backward node reads the forward value of its layer and the gradient so far."""
    n = 2 * layers + 1
    edges = [(i, i + 1) for i in range(n - 1)] + [(i, n - 1 - i) for i in range(layers)]
    return make([1] * n, [1] * n, edges)


def layered(nodes, edges, seed, reach=6):
    """Each node reads one of those shortly before it; further edges are at random, and so are costs and sizes."""
    chance = random.Random(seed)
    found = {(chance.randrange(max(0, i - reach), i), i) for i in range(1, nodes)}
    while len(found) < edges:
        found.add(tuple(sorted(chance.sample(range(nodes), 2))))
    return make(*([chance.randint(1, 100) for _ in range(nodes)] for _ in range(2)), found)
