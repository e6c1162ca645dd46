"""Large calls that several threads share, and in which many elements meet in one place: additions
by index, backward passes of gathers, pools and samplers, and factorizations. PyTorch's own samples
are too small for two threads to meet.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from opinfo.cases import Case
from opinfo.copies import Copies
from opinfo.operators import backward, detached
from same import Program

COUNT, PLACES, WIDTH = 1 << 17, 64, 16


_SHAPES = {
    "at": (COUNT,),
    "at_rows": (COUNT // WIDTH,),
    "at_all": (COUNT // WIDTH, WIDTH),
    "at_wide": (WIDTH, COUNT // WIDTH),
    "few": (PLACES,),
    "many": (COUNT,),
    "weights": (COUNT,),
    "table": (PLACES, WIDTH),
    "rows": (COUNT // WIDTH, WIDTH),
    "wide": (WIDTH, COUNT // WIDTH),
    "image": (1, 2, 40, 40),
    "grid": (1, 256, 256, 2),
    "images": (4, 4, 96, 96),
    "video": (1, 2, 24, 48, 48),
    "filters": (8, 4, 3, 3),
    "transposed": (4, 8, 3, 3),
    "square": (300, 300),
    "speech": (200, 64, 20),
}


def _inputs(dtype: torch.dtype) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        name: torch.randint(PLACES, shape, generator=generator)
        if name.startswith("at")
        else torch.randn(shape, generator=generator).to(dtype).requires_grad_()
        for name, shape in _SHAPES.items()
    }


class _Copied:
    """The inputs by name, copied for one run when they are asked for."""

    def __init__(self, inputs: dict[str, torch.Tensor], copies: Copies) -> None:
        self._inputs, self._copies = inputs, copies

    def __getattr__(self, name: str) -> torch.Tensor:
        return self._copies.of(self._inputs[name])


def _unpooled(t: Any) -> torch.Tensor:
    values, places = F.max_pool2d(t.images, 5, 1, return_indices=True)
    return F.max_unpool2d(values, places, 5, 1)


def _summed_sparse(t: Any) -> torch.Tensor:
    return torch.sparse_coo_tensor(t.at[None], t.many.detach(), (PLACES,)).coalesce().to_dense()


def _sparse_product(t: Any) -> torch.Tensor:
    at = t.at[: 1 << 14]
    matrix = torch.sparse_coo_tensor(torch.stack([at, at.flip(0)]), t.many.detach()[: 1 << 14], (PLACES, PLACES))
    return torch.sparse.mm(matrix, t.table)


def _ctc(t: Any) -> torch.Tensor:
    targets = torch.arange(64 * 30).remainder(19).add(1).reshape(64, 30)
    return F.ctc_loss(t.speech.log_softmax(2), targets, torch.full((64,), 200), torch.full((64,), 30))


def _bags(t: Any, mode: str, weights: torch.Tensor | None = None) -> torch.Tensor:
    return F.embedding_bag(t.at, t.table, torch.arange(0, COUNT, 8), mode=mode, per_sample_weights=weights)


def _segments(t: Any) -> torch.Tensor:
    return torch.segment_reduce(t.many, "sum", lengths=torch.full((PLACES,), COUNT // PLACES))


Call = Callable[[Any], Any]

CALLS: dict[str, Call] = {
    "index_put": lambda t: t.few.index_put((t.at,), t.many),
    "index_put accumulate": lambda t: t.few.index_put((t.at,), t.many, accumulate=True),
    "index_put_ accumulate": lambda t: t.few.index_put_((t.at,), t.many, accumulate=True),
    "index_put rows": lambda t: t.table.index_put((t.at_rows,), t.rows, accumulate=True),
    "_unsafe_index_put": lambda t: torch.ops.aten._unsafe_index_put(t.few, [t.at], t.many, True),
    "put": lambda t: t.few.put(t.at, t.many),
    "put accumulate": lambda t: t.few.put(t.at, t.many, accumulate=True),
    "index_add": lambda t: t.few.index_add(0, t.at, t.many),
    "index_add rows": lambda t: t.table.index_add(0, t.at_rows, t.rows),
    "index_copy": lambda t: t.few.index_copy(0, t.at, t.many),
    "index_copy rows": lambda t: t.table.index_copy(0, t.at_rows, t.rows),
    "index_fill": lambda t: t.table.index_fill(0, t.at_rows, 2),
    "scatter": lambda t: t.few.scatter(0, t.at, t.many),
    "scatter rows": lambda t: t.table.scatter(0, t.at_all, t.rows),
    "scatter_add": lambda t: t.few.scatter_add(0, t.at, t.many),
    "scatter_add rows": lambda t: t.table.scatter_add(0, t.at_all, t.rows),
    "scatter_add expanded": lambda t: t.table.scatter_add(0, t.at_rows[:, None].expand(-1, WIDTH), t.rows),
    "gather": lambda t: t.few.gather(0, t.at),
    "gather rows": lambda t: t.table.gather(0, t.at_all),
    "gather columns": lambda t: t.wide.gather(1, t.at_wide),
    "take": lambda t: t.few.take(t.at),
    "index": lambda t: t.few[t.at],
    "index rows": lambda t: t.table[t.at_rows],
    "index_select": lambda t: t.few.index_select(0, t.at),
    "index_select rows": lambda t: t.table.index_select(0, t.at_rows),
    "repeat_interleave": lambda t: t.few.repeat_interleave(2048),
    "embedding": lambda t: F.embedding(t.at_rows, t.table),
    "embedding scaled": lambda t: F.embedding(t.at_rows, t.table, scale_grad_by_freq=True),
    "embedding_bag sum": lambda t: _bags(t, "sum"),
    "embedding_bag mean": lambda t: _bags(t, "mean"),
    "embedding_bag max": lambda t: _bags(t, "max"),
    "embedding_bag weighted": lambda t: _bags(t, "sum", t.weights),
    "grid_sample": lambda t: F.grid_sample(t.image, t.grid, align_corners=False),
    "max_pool2d": lambda t: F.max_pool2d(t.images, 5, 1),
    "max_pool3d": lambda t: F.max_pool3d(t.video, 3, 1),
    "max_unpool2d": _unpooled,
    "avg_pool2d": lambda t: F.avg_pool2d(t.images, 5, 1),
    "adaptive_avg_pool2d": lambda t: F.adaptive_avg_pool2d(t.images, 63),
    "adaptive_max_pool2d": lambda t: F.adaptive_max_pool2d(t.images, 63),
    "fractional_max_pool2d": lambda t: F.fractional_max_pool2d(t.images, 3, output_size=60),
    "interpolate bilinear": lambda t: F.interpolate(t.images, scale_factor=2.5, mode="bilinear"),
    "interpolate bicubic": lambda t: F.interpolate(t.images, scale_factor=2.5, mode="bicubic"),
    "interpolate nearest": lambda t: F.interpolate(t.images, scale_factor=2.5, mode="nearest"),
    "pad reflect": lambda t: F.pad(t.images, (20, 20, 20, 20), mode="reflect"),
    "pad replicate": lambda t: F.pad(t.images, (20, 20, 20, 20), mode="replicate"),
    "sum": lambda t: t.many.sum(),
    "prod rows": lambda t: t.rows.prod(0),
    "cumsum": lambda t: t.many.cumsum(0),
    "layer_norm": lambda t: F.layer_norm(t.rows, (WIDTH,)),
    "group_norm": lambda t: F.group_norm(t.images, 2),
    "batch_norm": lambda t: F.batch_norm(t.images, None, None, training=True),
    "softmax": lambda t: t.wide.softmax(1),
    "matmul": lambda t: t.square @ t.square,
    "linear": lambda t: F.linear(t.rows, t.table),
    "conv2d": lambda t: F.conv2d(t.images, t.filters),
    "conv_transpose2d": lambda t: F.conv_transpose2d(t.images, t.transposed),
    "sort": lambda t: t.many.sort(),
    "unique": lambda t: t.at.unique(return_inverse=True, return_counts=True),
    **{f"scatter_reduce {r}": lambda t, r=r: t.few.scatter_reduce(0, t.at, t.many, r) for r in ("sum", "prod", "mean", "amax")},
    **{f"scatter_reduce rows {r}": lambda t, r=r: t.table.scatter_reduce(0, t.at_all, t.rows, r) for r in ("sum", "prod", "mean", "amax")},
    **{f"index_reduce {r}": lambda t, r=r: t.table.detach().index_reduce(0, t.at_rows, t.rows.detach(), r) for r in ("prod", "mean", "amax")},
}  # fmt: skip
ONLY_IN_FULL_PRECISION: dict[str, Call] = {
    "bincount": lambda t: t.at.bincount(t.weights.detach()),
    "histc": lambda t: t.many.detach().histc(50),
    "histogram": lambda t: torch.histogram(t.many.detach(), 50, weight=t.weights.detach()),
    "segment_reduce": _segments,
    "cdist": lambda t: torch.cdist(t.rows[:256], t.table),
    "pdist": lambda t: torch.pdist(t.rows[:300]),
    "nll_loss": lambda t: F.nll_loss(t.rows, t.at_rows % WIDTH),
    "multi_margin_loss": lambda t: F.multi_margin_loss(t.rows, t.at_rows % WIDTH),
    "sparse sum": _summed_sparse,
    "sparse product": _sparse_product,
    "ctc_loss": _ctc,
    "fft": lambda t: torch.fft.fft(t.many),
    "inverse": lambda t: torch.linalg.inv(t.square),
    "solve": lambda t: torch.linalg.solve(t.square, t.square),
    "lstsq": lambda t: torch.linalg.lstsq(t.square, t.square),
    "lu": lambda t: torch.linalg.lu(t.square),
    "qr": lambda t: torch.linalg.qr(t.square),
    "svd": lambda t: torch.linalg.svd(t.square)[1],
    "eigh": lambda t: torch.linalg.eigh(t.square)[0],
    "eig": lambda t: torch.linalg.eig(t.square.detach()),
    "pinv": lambda t: torch.linalg.pinv(t.square),
}


def crowded_cases() -> Iterator[Case]:
    for dtype in ("float32", "float64", "bfloat16"):
        for name in CALLS if dtype == "bfloat16" else CALLS | ONLY_IN_FULL_PRECISION:
            yield Case("crowded", name, dtype, "function")


def crowded_programs(case: Case) -> Iterator[Program]:
    yield partial(_run, (CALLS | ONLY_IN_FULL_PRECISION)[case.name], _inputs(getattr(torch, case.dtype)))


def _run(call: Call, inputs: dict[str, torch.Tensor]) -> Any:
    copies = Copies()
    result = call(_Copied(inputs, copies))
    backward(result)
    return {"result": detached(result), "arguments": detached(copies.tensors), "gradients": copies.gradients()}
