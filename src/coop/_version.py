"""The version, and the one version of PyTorch that this build fits."""

__version__ = "0.1.0"

TORCH = "2.13.0"


def check_torch() -> None:
    """Coop's extension uses PyTorch's internals. With another version it would crash instead of
    raising an error."""
    try:
        import torch
    except ImportError as error:
        raise ImportError(
            f"coop {__version__} needs torch=={TORCH}, and no torch is installed: pip install torch=={TORCH}"
        ) from error
    if torch.__version__.split("+")[0] != TORCH:
        raise ImportError(
            f"coop {__version__} needs torch=={TORCH} exactly, and torch {torch.__version__} is installed: "
            f"pip install torch=={TORCH}"
        )
