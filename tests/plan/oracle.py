"""The best plan of a small graph, by a search over all states of memory: slow, and obviously
right."""

import heapq
import itertools


def cheapest(graph, budget, paging=None):
    """Dijkstra over states: what is done, in memory and in storage. None: no plan fits."""
    kept = {number for number, value in enumerate(graph.values) if value.kept}
    size = [value.bytes for value in graph.values]
    first = (0, frozenset(), frozenset())
    best, heap, order = {first: 0}, [(0, 0, first)], itertools.count(1)
    while heap:
        cost, _, state = heapq.heappop(heap)
        done, memory, stored = state
        if cost > best[state]:
            continue
        if done == len(graph.nodes) and kept <= memory:
            return cost
        used = graph.base[done] + sum(size[value] for value in memory)
        followers = [(0, (done, memory - {value}, stored)) for value in memory]
        for value in memory - stored if paging else ():
            if paging.capacity is None or sum(size[v] for v in stored) + size[value] <= paging.capacity:
                followers.append((paging.out_time(size[value]), (done, memory, stored | {value})))
        for value in stored - memory:
            if used + size[value] <= budget:
                followers.append((paging.in_time(size[value]), (done, memory | {value}, stored)))
        for number in range(min(done + 1, len(graph.nodes))):
            node = graph.nodes[number]
            again = number < done
            if not memory.issuperset(node.inputs) or (again and not graph.repeatable(number, done)):
                continue
            after = (memory - set(node.overwritten())) | set(node.outputs)
            if graph.base[done] + node.scratch + sum(size[value] for value in after) <= budget:
                followers.append((node.cost, (done + (not again), after, stored)))
        for more, follower in followers:
            if cost + more < best.get(follower, float("inf")):
                best[follower] = cost + more
                heapq.heappush(heap, (cost + more, next(order), follower))
    return None
