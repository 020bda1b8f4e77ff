"""A hint asks first, and tells the rule to whoever fails again."""

from __future__ import annotations

from labkit.lab.exercises.running import staged


def test_the_rule_comes_the_second_time(seed: int) -> None:
    rule = f"Add {seed}."
    assert [staged("What is missing?", rule) for _ in range(3)] == ["What is missing?"] + 2 * [
        f"What is missing? {rule}"
    ]
