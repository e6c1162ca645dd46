"""Random traces for hypothesis: views, several outputs, in-place ops, holds, ops that cost nothing,
ties."""

from hypothesis import strategies as st

from coop.trace import Hold, Op, Output, Release, Source, Trace

SIZES = (0, 1, 2, 4, 8, 8, 8, 16)
COSTS = (0, 1, 1, 2, 3, 5)

KINDS = ("op", "op", "op", "op", "view", "write", "hold", "release", "release", "source")
_WIDTH = 8


@st.composite
def traces(draw, steps=40, **limits):
    # Bytes are quick to draw, and shrink well.
    return build(draw(st.binary(min_size=_WIDTH * steps // 2, max_size=_WIDTH * steps)), **limits)


def build(code, fan_in=3, view_cost=True, views_of_several=False, large=False, after_release=False):
    """`fan_in` limits the inputs of an op; `after_release` lets ops read tensors that nobody
    holds."""
    instructions = []
    references = []
    storage = []

    def size(number):
        return SIZES[number % 8] * (10**8 + number * 7919 if large else 1)

    def cost(number):
        return COSTS[number % 6] * (10**9 + number * 104729 if large else 1)

    def born(home=None):
        references.append(1)
        storage.append(len(storage) if home is None else home)
        return len(references) - 1

    def source(number):
        instructions.append(Source(born(), size(number)))

    source(4)
    for at in range(0, len(code) - _WIDTH + 1, _WIDTH):
        chosen, count, *numbers = code[at : at + _WIDTH]
        kind, first, second = KINDS[chosen % 10], numbers[: 1 + count % 3], numbers[3 : 4 + count // 3 % 3]
        held = [tensor for tensor, count in enumerate(references) if count]
        if not held or kind == "source":
            source(first[0])
            continue
        readable = range(len(references)) if after_release else held
        # Mostly recent tensors.
        inputs = [readable[-1 - number % min(len(readable), 4 if number % 3 else 1000)] for number in first][:fan_in]
        if kind == "op":
            outputs = tuple(Output(born(), size(number)) for number in second)
            instructions.append(Op("f", tuple(inputs), outputs, cost(sum(first))))
        elif kind == "view":
            inputs = inputs if views_of_several else inputs[:1]
            aliases = [number % len(inputs) for number in second[:2]]
            outputs = tuple(Output(born(storage[inputs[alias]]), 0, alias) for alias in aliases)
            instructions.append(Op("v", tuple(inputs), outputs, cost(sum(second)) if view_cost else 0))
        elif kind == "write":
            written = [
                index for index, tensor in enumerate(inputs) if inputs.index(tensor) == index and references[tensor]
            ]
            written = written[: 1 + second[0] % 2]
            if written:
                outputs = tuple(Output(born(), 0, index) for index in written)
                instructions.append(Op("w_", tuple(inputs), outputs, cost(second[0]), "forward", tuple(written)))
                # Now and then the old version stays, and the op is no MUTATE.
                for index in written if second[0] % 5 else ():
                    references[inputs[index]] -= 1
                    instructions.append(Release(inputs[index]))
        else:
            tensor = held[-1 - first[0] % len(held)]
            references[tensor] += 1 if kind == "hold" else -1
            instructions.append((Hold if kind == "hold" else Release)(tensor))
    # Most tensors are released at the end, or no budget would be enough.
    for tensor, count in enumerate(references):
        if (tensor * 7 + len(code)) % 8:
            instructions += [Release(tensor)] * count
    return Trace(instructions)
