"""Traces and budgets from outside, checked before they are played. All errors are ValueErrors with
a sentence for users."""

from coop.simulate.player import Floor, Player
from coop.sizes import format_bytes
from coop.trace.trace import Op, Source, Trace, TraceError


def player_of(trace: Trace) -> Player:
    """Raises TraceError if the trace has nothing to play."""
    if not any(True for _ in trace.ops):
        raise TraceError("the trace has no ops: there is nothing to play")
    try:
        player = Player(trace)
    except (ValueError, IndexError) as error:
        raise TraceError(f"the trace cannot be played: {error}") from error
    except (TypeError, OverflowError) as error:
        raise TraceError("the trace cannot be played: a size in it has more than 64 bits") from error
    if not player.peak:
        raise TraceError("the step of the trace needs no memory: every budget serves")
    return player


def above_the_floor(player: Player, budget: int | float, floor: Floor) -> int:
    """The budget in bytes. Raises ValueError if the largest op does not fit beside the sources."""
    count = int(budget * player.peak) if isinstance(budget, float) else budget
    if count >= floor.bytes:
        return count
    setter = player.trace.instructions[floor.setter]
    what = f"op {setter.name!r}" if isinstance(setter, Op) else "a source" if isinstance(setter, Source) else "the step"
    share = -(-1000 * floor.bytes // player.peak) / 1000  # rounded up
    raise ValueError(
        f"a budget of {exactly(count)} is below the floor: {what} (instruction {floor.setter}) needs {exactly(floor.bytes)}, its "
        f"own operands and everything that cannot be recomputed; the step's peak is {format_bytes(player.peak)}. "
        f"Tip: a share of {share:.1%} or more can serve."
    )


def exactly(count: int) -> str:
    return f"{format_bytes(count)} ({count} bytes)"
