"""lop3: any logic function of three words, given by its truth table, as a short expression."""

from __future__ import annotations

from functools import lru_cache

A, B, C = 0xF0, 0xCC, 0xAA  # truth tables of the three inputs themselves
ALL = 0xFF


@lru_cache(maxsize=1)
def shortest_formulas() -> dict[int, tuple[int, str]]:
    """Truth table -> (number of operators, formula in a, b, c) for all 256 functions.

    Cheapest first: formulas of n operators are made of formulas with fewer, until nothing new is found.
    """
    best = {A: (0, "{a}"), B: (0, "{b}"), C: (0, "{c}")}
    changed = True
    while changed or len(best) < 254:
        changed = False
        for x, (cost_x, text_x) in list(best.items()):
            candidates = [(ALL & ~x, cost_x + 1, f"~{text_x}")]
            for y, (cost_y, text_y) in list(best.items()):
                cost = cost_x + cost_y + 1
                candidates += [(x & y, cost, f"({text_x} & {text_y})"), (x | y, cost, f"({text_x} | {text_y})")]
                candidates.append((x ^ y, cost, f"({text_x} ^ {text_y})"))
            for table, cost, text in candidates:
                if table not in best or cost < best[table][0]:
                    best[table] = (cost, text)
                    changed = True
    return best


def lop3_expression(table: int, a: str, b: str, c: str) -> str:
    """The expression of a truth table over three operand expressions."""
    formula = shortest_formulas()[table][1]
    return formula.format(a=a, b=b, c=c)
