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
_SMALL: dict[str, Callable[[bool], Network]] = {"resnet18": borrowed.resnet18, "bert-base": borrowed.bert_base}
NAMES = tuple(_NETWORKS)
"""Those of the paper, on which policies and planners are compared."""
SMALL_NAMES = tuple(_SMALL)
"""Networks for small devices."""
KNOWN = (*NAMES, *SMALL_NAMES)


def get(name: str, small: bool = False) -> Network:
    """The network of that name. `small`: the same architecture at a size that a laptop trains in a
    moment."""
    networks = _NETWORKS | _SMALL
    if name not in networks:
        raise ValueError(f"there is no network {name!r}; the known ones are {', '.join(networks)}")
    return networks[name](small)
