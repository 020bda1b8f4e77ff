"""The order of basic blocks: topological, with every loop in one piece.

The machine runs the threads that stand in the lowest block first. Were the code after a loop numbered lower than the
loop, the first threads to leave it would run on alone; so a loop's blocks all come before what follows it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from labkit.sim.program import EXIT

Graph = dict[int, list[int]]


def linear_order(entry: int, successors: Sequence[Sequence[int]]) -> list[int]:
    """Reachable nodes in reverse postorder, loops kept together, whatever their nesting."""
    graph = {node: [s for s in targets if s != EXIT] for node, targets in enumerate(successors)}
    return list(_order([entry], graph))


def _order(entries: list[int], graph: Graph) -> Iterator[int]:
    """Strongly connected components one after the other; in each the header first, then the rest without it."""
    for component in _components(entries, graph):
        header = component[0]
        yield header
        rest = set(component[1:])
        if rest:
            inner = {node: [s for s in graph[node] if s in rest] for node in component}
            yield from _order(inner[header], inner)


def _components(entries: list[int], graph: Graph) -> list[list[int]]:
    """Components reachable from the entries in topological order (Tarjan, without recursion), headers first."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []  # nodes whose component is still open
    found: list[list[int]] = []

    def enter(node: int) -> tuple[int, Iterator[int]]:
        index[node] = low[node] = len(index)
        stack.append(node)
        return node, iter(graph[node])

    for entry in entries:
        walk = [enter(entry)] if entry not in index else []
        while walk:
            node, targets = walk[-1]
            for target in targets:
                if target not in index:
                    walk.append(enter(target))
                    break
                if target in stack:
                    low[node] = min(low[node], index[target])
            else:
                walk.pop()
                if walk:
                    low[walk[-1][0]] = min(low[walk[-1][0]], low[node])
                if low[node] == index[node]:
                    position = stack.index(node)
                    found.append(stack[position:])
                    del stack[position:]
    return found[::-1]
