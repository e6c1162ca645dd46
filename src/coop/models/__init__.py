"""The eight networks of the Coop paper, at its sizes and at small ones for tests; and two that are
trained on small devices.

    network = coop.models.get("bert-large")
    model = network.build()
    optimizer = network.optimizer(model.parameters())
    network.step(model, optimizer, network.batch(16))

They are built on the default device, with random weights, in fp32 as in the paper.
"""

from coop.models.network import Network
from coop.models.registry import KNOWN, NAMES, get

__all__ = ["KNOWN", "NAMES", "Network", "get"]
