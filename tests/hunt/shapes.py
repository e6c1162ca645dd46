"""Small helpers that make any tensor fit any step, so that every list of steps is a program."""

import torch

MOST = 16384  # elements of a result: above 32,768, some of PyTorch's own kernels add in any order


def flt(x: torch.Tensor) -> torch.Tensor:
    """As floating point."""
    if x.is_complex():
        return x.real
    return x if x.is_floating_point() else x.float()


def f32(x: torch.Tensor) -> torch.Tensor:
    return flt(x).float()


def fit(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The elements of y, cut off or repeated, in the shape of x."""
    if y.shape == x.shape:
        return y
    flat = y.reshape(-1)
    if not flat.numel():
        flat = y.new_ones(1)
    if flat.numel() < x.numel():
        flat = flat.repeat(-(-x.numel() // flat.numel()))
    return flat[: x.numel()].reshape(x.shape)


def span(x: torch.Tensor) -> int:
    """Elements from its first to its last: so many can be read from where it begins."""
    return 1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True)) if x.numel() else 0


def mat(x: torch.Tensor) -> torch.Tensor:
    """As a matrix."""
    if x.dim() == 2:
        return x
    rows = next(rows for rows in (8, 4, 2, 1) if x.numel() % rows == 0)
    return x.reshape(rows, -1)


def vec(x: torch.Tensor, most: int = 64) -> torch.Tensor:
    return x.reshape(-1)[:most]


def square(x: torch.Tensor, n: int = 8) -> torch.Tensor:
    """A small square matrix that can be inverted."""
    return fit(f32(x).tanh(), torch.empty(n, n)) + 2 * n * torch.eye(n)


def index(y: torch.Tensor, size: int, count: int = 16) -> torch.Tensor:
    """Valid indices, from the elements of y."""
    return (vec(f32(y), count).nan_to_num().abs() * 100).clamp(max=1e6).long() % max(size, 1)


def distinct(k: int, size: int) -> torch.Tensor:
    """Valid indices, none twice."""
    return torch.arange(k % 3, size, 1 + k % 4)


def out(z: torch.Tensor, *inputs: torch.Tensor) -> torch.Tensor:
    """For out=: z, if nothing can fail after z has been given its new shape, with bytes that nobody
    has set. PyTorch resizes a z that is only marked as negated without an operator: if it is
    evicted, that is an error (test_odd_operators.py)."""
    fits = z.dtype is torch.float32 and not z.requires_grad and not z.is_inference() and resizable(z)
    fits = fits and not z.is_neg()
    return z if fits and not any(torch._C._is_alias_of(z, x) for x in inputs) else torch.empty(0)


def resizable(x: torch.Tensor) -> bool:
    """Where it is not, plain PyTorch raises, but leaves a shape behind that reaches past the end of
    the memory. An inference tensor can be made larger anywhere, but filled in inference mode
    only."""
    writable = not x.is_inference() or torch.is_inference_mode_enabled()
    return x.untyped_storage().resizable() and writable
