"""Variants: a policy with parts switched on or off, as people write them.

    coop                    the policy as it is
    coop+no-window          one part off: a line of the ablation
    dtr+two-ended+partition DTR with the placement of coop
    delta+swap              with a tier to swap to

The text is also the name of the variant in files and pictures.
"""

from dataclasses import dataclass
from typing import Any

from coop._C import CostModel, Options, Placement
from coop.policies import options_for
from coop.surface import OPTIONS

SWITCHES = {
    name: OPTIONS[name]
    for name in (
        "window", "partition", "in_place", "move", "per_byte", "keep_dead", "needed_only", "record_backward", "rescue",
        "swap", "foresee",
    )
}  # fmt: skip
"""Parts of a policy that are on or off, and what they do."""

ABLATION = ("window", "partition", "in_place", "move", "per_byte", "keep_dead", "needed_only")
"""The parts of coop: the three modules of the paper, and what was added."""

_CHOICES: dict[str, tuple[str, Any]] = {
    "two-ended": ("placement", Placement.two_ended),
    "best-fit": ("placement", Placement.best_fit),
    "own-cost": ("cost", CostModel.own),
    "exact-cost": ("cost", CostModel.exact),
    "union-find-cost": ("cost", CostModel.union_find),
}


@dataclass(frozen=True, slots=True)
class Variant:
    policy: str
    switches: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def parse(cls, text: str) -> "Variant":
        """Raises ValueError, with the known words, if a word is unknown."""
        policy, *words = text.split("+")
        switches = []
        for word in words:
            name = word.removeprefix("no-").replace("-", "_")
            if word in _CHOICES:
                switches.append(_CHOICES[word])
            elif name in SWITCHES:
                switches.append((name, not word.startswith("no-")))
            else:
                known = [name.replace("_", "-") for name in SWITCHES]
                raise ValueError(
                    f"unknown switch {word!r} in {text!r}; the known ones are {', '.join(known)}, each also with no- "
                    f"before it, and {', '.join(_CHOICES)}"
                )
        variant = cls(policy, tuple(switches))
        variant.options(1)
        return variant

    @property
    def label(self) -> str:
        choices = {choice: word for word, choice in _CHOICES.items()}
        words = [
            choices.get((name, value)) or ("" if value else "no-") + name.replace("_", "-")
            for name, value in self.switches
        ]
        return "+".join([self.policy, *words])

    def options(self, budget: int) -> Options:
        """Raises ValueError, with the known policies, if the policy is unknown."""
        return options_for(self.policy, budget, 0, dict(self.switches))


def ablation_of(variant: Variant) -> list[Variant]:
    """The variant with each of its parts off in turn."""
    return [Variant(variant.policy, (*variant.switches, (name, False))) for name in ABLATION]
