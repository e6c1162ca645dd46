"""The networks by name."""

from collections.abc import Callable

from coop.models import bilstm, borrowed, inception, spos, unet
from coop.models.network import Network

_NETWORKS: dict[str, Callable[[bool], Network]] = {
    "resnet50": borrowed.resnet50,
    "inception-v3": inception.network,
    "unet": unet.network,
    "bert-large": borrowed.bert_large,
    "swin-t": borrowed.swin_t,
    "bilstm": bilstm.network,
    "spos": spos.network,
    "gpt-2.7b": borrowed.gpt,
}
NAMES = tuple(_NETWORKS)


def get(name: str, small: bool = False) -> Network:
    """The network of that name. `small` is the same architecture at a size that trains on a laptop in a moment."""
    if name not in _NETWORKS:
        raise ValueError(f"there is no network {name!r}; the known ones are {', '.join(NAMES)}")
    return _NETWORKS[name](small)
