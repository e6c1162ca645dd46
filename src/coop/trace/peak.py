"""The memory that a step needs when nothing is evicted."""

from coop.trace.trace import Op, Release, Source, Trace, storages_of


def peak_bytes(trace: Trace, alignment: int = 1) -> int:
    """The most bytes that held storages and the scratch of a running op take at once. Sizes are
    rounded up."""
    storage_of, sizes = storages_of(trace.instructions)
    references = [0] * len(sizes)
    used = peak = 0

    def rounded(size: int) -> int:
        return -(-size // alignment) * alignment

    def hold(tensor: int, count: int) -> int:
        storage = storage_of[tensor]
        before, references[storage] = references[storage], references[storage] + count
        return rounded(sizes[storage]) * ((before + count > 0) - (before > 0))

    for instruction in trace.instructions:
        if isinstance(instruction, Source):
            used += hold(instruction.tensor, 1)
        elif isinstance(instruction, Op):
            # Of a write, the old version is still held and the new one is the same bytes.
            used += sum(hold(output.tensor, 1) for output in instruction.outputs)
            peak = max(peak, used + rounded(instruction.scratch))
        else:
            used += hold(instruction.tensor, -1 if isinstance(instruction, Release) else 1)
        peak = max(peak, used)
    return peak
