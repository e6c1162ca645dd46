"""What CONTRIBUTING.md shows is what the tests build."""

from pathlib import Path

HOME = Path(__file__).parents[1]


def test_the_example_of_a_policy_is_the_one_that_is_built_and_tested():
    source = (HOME / "tests" / "engine" / "example_policy.cpp").read_text()
    assert f"```cpp\n{source}```" in (HOME / "CONTRIBUTING.md").read_text()
