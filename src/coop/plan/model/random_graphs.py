"""Random graphs to measure planners on. The same seed gives the same graph everywhere."""

import random

from coop.plan.model.graph import Graph, make


def layered(nodes: int, edges: int, seed: int) -> Graph:
    """A source, layers of random width, a target; the input order is one layer after the other.

    Each node reads one of the layer before and, unless it is read already, is read by one of the
    layer after; all further edges come from random earlier layers. If that takes more edges than
    asked for, there are more. Costs and sizes are random, 1 to 1,000 thousand.
    """
    if nodes < 2:
        raise ValueError(f"a graph with a source and a target has at least 2 nodes, not {nodes}")
    chance = random.Random(seed)
    layers = _layers(nodes, chance)
    layer_of = [number for number, layer in enumerate(layers) for _ in layer]
    most = sum(layers[number].start for number in layer_of)
    if edges > most:
        raise ValueError(f"{edges} edges: there are only {most} between different layers of {nodes} nodes, seed {seed}")

    found = {(chance.choice(layers[layer_of[node] - 1]), node) for node in range(1, nodes)}
    read = {made for made, _ in found}
    found.update((node, chance.choice(layers[layer_of[node] + 1])) for node in range(nodes - 1) if node not in read)
    while len(found) < edges:
        reader = chance.randrange(1, nodes)
        earlier = chance.randrange(layer_of[reader])
        found.add((chance.choice(layers[earlier]), reader))
    costs, sizes = ([1000 * chance.randint(1, 1000) for _ in range(nodes)] for _ in range(2))
    return make(costs, sizes, found, name=f"{nodes} nodes in layers, seed {seed}")


def _layers(nodes: int, chance: random.Random) -> list[range]:
    widest = max(2, int(nodes**0.5) // 2)
    layers, begin = [range(1)], 1
    while begin < nodes - 1:
        width = min(chance.randint(1, widest), nodes - 1 - begin)
        layers.append(range(begin, begin + width))
        begin += width
    return [*layers, range(nodes - 1, nodes)]
