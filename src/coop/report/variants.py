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

SWITCHES = {
    "window": "Victims are one run of neighbours (coop).",
    "partition": "Cheap and dear results go to opposite sides.",
    "in_place": "In-place ops rename versions; off: copy on write.",
    "move": "Sources and dear results in a window's way are copied aside (coop).",
    "per_byte": "A window's cost is divided by its bytes (coop).",
    "keep_dead": "What nobody holds stays until its room is needed.",
    "needed_only": "Costs count what somebody needs.",
    "record_backward": "Gradients on their way can be recomputed too.",
    "rescue": "Where nothing else helps, blocks are moved together.",
    "swap": "Storages may leave with their bytes, over the link of the trace's device, or 12 GB/s each way.",
    "foresee": "With swap: what the last step did is expected of this one.",
}
"""Parts of a policy that are on or off, and what they do."""

ABLATION = ("window", "partition", "in_place", "move", "per_byte", "keep_dead", "needed_only")
"""What makes coop: the three modules of the paper, and what was added."""

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
        """Raises ValueError with the known words, if there is one that is not."""
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
