"""A bidirectional LSTM, unrolled over time: one cell call, a handful of ops, for each time step
and direction."""

import torch
from torch import Tensor, nn

from coop.models.network import Inputs, Network, adam


class BiLSTM(nn.Module):
    def __init__(self, inputs: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.forwards = nn.LSTMCell(inputs, hidden)
        self.backwards = nn.LSTMCell(inputs, hidden)
        self.classifier = nn.Linear(2 * hidden, classes)

    def forward(self, sequence: Tensor) -> Tensor:
        """`sequence` is time x batch x inputs. The last states of both directions are
        classified."""
        steps = sequence.unbind(0)
        ends = [self._run(self.forwards, steps), self._run(self.backwards, steps[::-1])]
        logits: Tensor = self.classifier(torch.cat(ends, 1))
        return logits

    @staticmethod
    def _run(cell: nn.LSTMCell, steps: tuple[Tensor, ...]) -> Tensor:
        state: tuple[Tensor, Tensor] | None = None
        for step in steps:
            state = cell(step, state)
        assert state is not None, "a sequence has at least one time step"
        return state[0]


def network(small: bool) -> Network:
    inputs, hidden, length, classes = (8, 16, 6, 10) if small else (100, 256, 128, 10)

    def batch(count: int) -> Inputs:
        return torch.randn(length, count, inputs), torch.randint(classes, (count,))

    return Network("bilstm", lambda: BiLSTM(inputs, hidden, classes), batch, 4 if small else 2048, adam)
