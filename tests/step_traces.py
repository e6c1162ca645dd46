"""Traces of small made-up training steps, for tests that need one without training anything.

They imitate PyTorch: the tape holds what the backward pass reads, gradients go backwards, and the
optimizer writes to parameters that live on into the next step.
"""

from collections.abc import Sequence

from coop.trace import Hold, Instruction, Op, Output, Release, Source, Trace

FLOPS = 20e12
BANDWIDTH = 1e12


class Tape:
    """A step under construction. Methods return tensor numbers."""

    def __init__(self) -> None:
        self.instructions: list[Instruction] = []
        self.bytes: list[int] = []
        self.parameters: list[int] = []
        self._backward: list[tuple[str, int, int, list[int], list[int], float]] = []

    def source(self, size: int, kind: str) -> int:
        self.instructions.append(Source(len(self.bytes), size, kind))
        self.bytes.append(size)
        if kind == "parameter":
            self.parameters.append(len(self.bytes) - 1)
        return len(self.bytes) - 1

    def op(
        self, name: str, inputs: Sequence[int], size: int, flops: float = 0, phase: str = "forward", scratch: int = 0
    ) -> int:
        made = len(self.bytes)
        moved = size + sum(self.bytes[tensor] for tensor in inputs)
        cost = round(1e9 * max(flops / FLOPS, moved / BANDWIDTH)) + 2000
        self.instructions.append(Op(name, tuple(inputs), (Output(made, size),), cost, phase, scratch=scratch))
        self.bytes.append(size)
        return made

    def forward(
        self, name: str, x: int, size: int, *, weight: int | None = None, flops: float = 0, saves: str = "x"
    ) -> int:
        """One layer of the network; `saves` says whether its backward reads the input (x) or the
        output (y)."""
        parameters = [] if weight is None else [weight]
        y = self.op(name, [x, *parameters], size, flops, scratch=size // 4 if flops else 0)
        saved = [x if letter == "x" else y for letter in saves]
        self.instructions += [Hold(tensor) for tensor in saved]
        self._backward.append((name, x, y, saved, parameters, flops))
        return y

    def forward_(self, name: str, x: int) -> int:
        """The same in place, for a layer whose backward reads the output."""
        y = len(self.bytes)
        cost = round(1e9 * 2 * self.bytes[x] / BANDWIDTH) + 2000
        self.instructions += [Op(name, (x,), (Output(y, 0, 0),), cost, writes=(0,)), Hold(y)]
        self.bytes.append(self.bytes[x])
        self._backward.append((name, x, y, [y], [], 0))
        return y

    def release(self, *tensors: int) -> None:
        self.instructions += [Release(tensor) for tensor in tensors]

    def backward(self, loss: int, residual: dict[int, int]) -> dict[int, int]:
        """Gradients of the parameters. `residual`: the output of an addition, and the second tensor
        it added."""
        gradients = {loss: self.op("ones", [], self.bytes[loss], phase="backward")}
        for name, x, y, saved, parameters, flops in reversed(self._backward):
            given = gradients.pop(y)
            for parameter in parameters:
                size = self.bytes[parameter]
                gradients[parameter] = self.op(f"{name}_weight", [given, *saved], size, flops, "backward")
            back = self.op(f"{name}_backward", [given, *saved, *parameters], self.bytes[x], flops, "backward")
            self._flow(gradients, x, back)
            if y in residual:
                self._flow(gradients, residual[y], self.op("clone", [given], self.bytes[y], phase="backward"))
            self.release(given, *saved)
        return gradients

    def _flow(self, gradients: dict[int, int], tensor: int, gradient: int) -> None:
        if tensor in gradients:
            both = self.op("add_gradients", [gradients[tensor], gradient], self.bytes[tensor], phase="backward")
            self.release(gradients[tensor], gradient)
            gradient = both
        gradients[tensor] = gradient

    def update(self, parameter: int, gradient: int) -> None:
        """parameter -= gradient, in place; in the next step the parameter is the new version."""
        made = len(self.bytes)
        self.instructions.append(
            Op("sgd_", (parameter, gradient), (Output(made, 0, 0),), 3000, "optimizer", writes=(0,))
        )
        self.bytes.append(0)
        self.release(parameter, gradient)
        first = self.instructions[parameter]
        assert isinstance(first, Source)
        self.instructions[parameter] = Source(parameter, first.bytes, first.kind, carries=made)


def transformer(layers: int = 6, width: int = 512, tokens: int = 2048, name: str = "transformer") -> Trace:
    """Blocks of norm, product, activation, product and addition: cheap and expensive results in
    turn."""
    tape = Tape()
    weights = [
        (tape.source(16 * width * width, "parameter"), tape.source(16 * width * width, "parameter"))
        for _ in range(layers)
    ]
    row = 4 * tokens * width
    x = batch = tape.source(row, "data")
    residual = {}
    for first, second in weights:
        product = 8.0 * tokens * width * width
        norm = tape.forward("layer_norm", x, row)
        wide = tape.forward("mm", norm, 4 * row, weight=first, flops=product)
        tape.release(norm)
        gelu = tape.forward("gelu", wide, 4 * row)
        tape.release(wide)
        dropout = tape.forward("dropout", gelu, 4 * row, saves="y")
        tape.release(gelu)
        narrow = tape.forward("mm", dropout, row, weight=second, flops=product)
        tape.release(dropout)
        y = tape.forward("add", narrow, row, saves="")
        residual[y] = x
        tape.release(narrow, x)
        x = y
    loss = tape.forward("loss", x, 4)
    tape.release(x)
    gradients = tape.backward(loss, residual)
    tape.release(loss, gradients.pop(batch))
    for parameter in tape.parameters:
        tape.update(parameter, gradients[parameter])
    return Trace(tape.instructions, name, "made up")


def convolutions(layers: int = 12, size: int = 1 << 22, name: str = "convolutions") -> Trace:
    """Convolution, norm and in-place activation, with sizes that halve every third layer: blocks
    of many sizes."""
    tape = Tape()
    weights = [tape.source(1 << 16, "parameter") for _ in range(layers)]
    x = batch = tape.source(size, "data")
    for layer, weight in enumerate(weights):
        out = size >> (layer // 3)
        wide = tape.forward("conv", x, out, weight=weight, flops=600.0 * out)
        tape.release(x)
        norm = tape.forward("batch_norm", wide, out)
        tape.release(wide)
        x = tape.forward_("relu_", norm)
        tape.release(norm)
    loss = tape.forward("loss", x, 4)
    tape.release(x)
    gradients = tape.backward(loss, {})
    tape.release(loss, gradients.pop(batch))
    for parameter in tape.parameters:
        tape.update(parameter, gradients[parameter])
    return Trace(tape.instructions, name, "made up")
