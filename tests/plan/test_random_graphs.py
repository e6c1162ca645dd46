"""The random graphs that planners are measured on."""

import pytest

from coop.plan.model.random_graphs import layered


@pytest.mark.parametrize(("nodes", "edges"), [(2, 1), (3, 2), (20, 40), (100, 380), (250, 944)])
def test_there_is_one_source_and_one_target_and_the_order_is_topological(nodes, edges):
    graph = layered(nodes, edges, 3)
    assert len(graph.nodes) == nodes and sum(map(len, graph.parents)) == edges
    assert all(parent < node for node, parents in enumerate(graph.parents) for parent in parents)
    assert [node for node, parents in enumerate(graph.parents) if not parents] == [0]
    assert [node for node, children in enumerate(graph.children) if not children] == [nodes - 1]
    assert {node.cost % 1000 for node in graph.nodes} == {value.bytes % 1000 for value in graph.values} == {0}


def test_a_seed_gives_the_same_graph_always_and_another_one_another():
    graph, other = layered(100, 380, 0), layered(100, 380, 1)
    assert graph == layered(100, 380, 0) and graph.fingerprint == "daebe46a735a7214"
    assert graph.cost == 48_367_000 and graph.fingerprint != other.fingerprint


def test_what_cannot_be_made_is_refused():
    with pytest.raises(ValueError, match=r"500 edges: there are only \d+ between different layers of 20"):
        layered(20, 500, 0)
    with pytest.raises(ValueError, match="at least 2 nodes, not 1"):
        layered(1, 0, 0)
