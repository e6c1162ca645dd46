"""What programs do besides running layers: in-place ops, views, generators, state that is saved and
loaded, data loaders, and tensors of other kinds."""

import copy

import pytest
import torch
from by_hand import step, wide
from torch import nn
from torch.nn import functional as F

import coop
from networks import tokens, train, transformer
from same import assert_same, same_in_budget, trained


def test_in_place_everything():
    def program():
        w = nn.Parameter(wide() / 16)
        v = nn.Parameter(wide() / 16)

        def loss():
            x = wide()
            a = (x @ w).add_(x, alpha=0.5).mul_(0.9).relu_()
            b = (a @ v).masked_fill_(a > 1, 0.0)
            b[3:40].mul_(2.0)  # a view of a mutated tensor
            b[:, 5].zero_()
            c = torch.empty_like(b).copy_(b)
            c.index_put_((torch.arange(10), torch.arange(10)), torch.ones(10), accumulate=True)
            c.clamp_(-2, 2)
            c.t()[7].fill_(0.25)
            d = F.dropout(c, 0.3) @ w
            return d.sigmoid_().square().mean()

        return step(loss, [w, v])

    same_in_budget(program)


def test_out_arguments():
    def program():
        with torch.no_grad():
            a, b = wide(), wide()
            keep = []
            out = torch.empty(256, 256)
            for _ in range(8):
                torch.mm(a, b, out=out)
                torch.tanh(out, out=out)
                keep.append(out * 1.5)
                torch.add(out, keep[-1], out=a)
            small = torch.empty(0)
            torch.cat(keep[:2], out=small)
            return small, keep, a

    same_in_budget(program, ratios=(0.7,))


def test_views_of_storages_that_are_overwritten_later():
    def program():
        with torch.no_grad():
            base = wide()
            views, products = [], []
            for i in range(8):
                row = base[i * 8 : i * 8 + 8]
                products.append(base @ base)
                row.mul_(1.1)
                views.append(row.clone())
                base = base.clone()
                base.diagonal().add_(1.0)
            return views, [p.sum() for p in products], base, products[3], products[6]

    same_in_budget(program, ratios=(0.7, 0.5))


def test_buffer_that_is_filled_again_and_again():
    def program():
        with torch.no_grad():
            noise, kept = torch.empty(256, 256), []
            for i in range(40):
                noise.normal_()
                kept.append((noise * i).exp().tanh())
            return [k.sum() for k in kept], kept[::5]

    same_in_budget(program, ratios=(0.6, 0.4))


def test_explicit_generators_and_random_ops():
    def program():
        generator = torch.Generator().manual_seed(7)
        w = nn.Parameter(wide() / 16)

        def loss():
            x = torch.randn(256, 256, generator=generator)
            y = x @ w
            y = y * torch.bernoulli(torch.full_like(y, 0.7), generator=generator)
            y = F.dropout(F.rrelu(y, training=True), 0.2)
            y = y + torch.rand_like(y) * 0.1 + torch.empty_like(y).uniform_(-1, 1, generator=generator)
            y = F.alpha_dropout(y, 0.1, training=True) + F.feature_alpha_dropout(y, 0.1, training=True)
            y = F.gumbel_softmax(y, dim=-1) @ w
            index = torch.multinomial(y.detach().softmax(-1), 3, generator=generator)
            return y.gather(1, index).square().mean() + torch.randperm(10, generator=generator).float().mean() * 0

        return step(loss, [w]), generator.get_state()

    same_in_budget(program)


def test_evaluation_between_steps():
    def program():
        model = transformer()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        losses, scores = [], []
        for _ in range(3):
            model.train()
            loss = model(tokens()).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss)
            model.eval()
            with torch.no_grad():
                scores.append(model(tokens()).mean())
            with torch.inference_mode():
                scores.append(model(tokens()).argmax(-1).float().mean().item())
        return trained(model, optimizer, losses), scores

    same_in_budget(program)


def test_history_that_keeps_large_tensors_across_steps():
    def program():
        model = transformer()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        history = []
        for _ in range(4):
            out = model(tokens())
            loss = out.square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            history.append((loss, out, out.detach().mean(-1)))
        return [(loss.detach(), out.detach(), mean) for loss, out, mean in history]

    same_in_budget(program, ratios=(0.8, 0.7))


def test_state_dict_saved_and_loaded_inside_and_outside(tmp_path):
    def program():
        model = transformer()
        first = train(model, tokens, steps=2)
        torch.save({"model": model.state_dict(), "first": first}, tmp_path / "state.pt")
        other = transformer()
        other.load_state_dict(torch.load(tmp_path / "state.pt")["model"])
        return first, train(other, tokens, steps=2)

    same_in_budget(program)
    inside = torch.load(tmp_path / "state.pt")
    model = transformer()
    model.load_state_dict(inside["model"])
    assert_same(inside["first"]["parameters"], {k: v.detach() for k, v in model.named_parameters()})


class Numbers(torch.utils.data.Dataset):
    def __init__(self):
        self.data = torch.randn(64, 16, 64)

    def __len__(self):
        return len(self.data)

    def __getitem__(self, i):
        return self.data[i] * 2, self.data[i].numpy() + 1


@pytest.mark.parametrize("workers", [0, 2])
def test_data_loader(workers):
    def program():
        loader = torch.utils.data.DataLoader(
            Numbers(), batch_size=16, num_workers=workers, multiprocessing_context="fork" if workers else None
        )
        model = transformer()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        losses = []
        for x, y in loader:
            loss = (model(x) - y).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss)
        return trained(model, optimizer, losses)

    same_in_budget(program)


def test_tensors_are_used_after_the_scope_has_ended():
    def forward():
        torch.manual_seed(3)
        model = transformer()
        x = tokens(8).requires_grad_()
        return model, x, model(x)

    def backward(model, x, out):
        out.square().mean().backward()
        return [p.grad.clone() for p in model.parameters()], x.grad, out.detach()

    expected = backward(*forward())
    with coop.measure() as memory:
        alive = forward()
    with coop.budget(int(memory.stats().peak * 0.6)) as memory:
        alive = forward()
        assert memory.stats().evictions > 0
    assert_same(expected, backward(*alive))  # every tensor that autograd has saved is back


def test_deepcopy_and_pickle():
    import pickle

    def program():
        model = transformer()
        x = tokens(8)
        out = model(x)
        twin = copy.deepcopy(model)
        out.square().mean().backward()
        again = pickle.loads(pickle.dumps([p.grad for p in model.parameters()]))
        twin(x).square().mean().backward()
        return [p.grad.clone() for p in twin.parameters()], again, copy.deepcopy(out.detach())

    same_in_budget(program, ratios=(0.7,))


def test_channels_last_and_groups_and_transposed_convolutions():
    def program():
        model = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.SiLU(),
            nn.Conv2d(16, 16, 3, padding=1, groups=4), nn.InstanceNorm2d(16, track_running_stats=True), nn.ReLU(True),
            nn.MaxPool2d(2, return_indices=False), nn.ConvTranspose2d(16, 8, 2, stride=2), nn.Hardswish(),
            nn.Dropout2d(0.2), nn.Conv2d(8, 4, 1), nn.Flatten(), nn.Linear(4 * 24 * 24, 10),
        ).to(memory_format=torch.channels_last)  # fmt: skip
        return train(model, lambda: torch.randn(4, 3, 24, 24).to(memory_format=torch.channels_last))

    same_in_budget(program)


@pytest.mark.filterwarnings(
    "ignore:Sparse:UserWarning",
    "ignore:.*prototype:UserWarning",
    "ignore:.*beta state:UserWarning",
    "ignore:.*deprecated",
)
def test_sparse_and_nested_and_quantised_tensors():
    def program():
        results = []
        table = nn.Embedding(1000, 64, sparse=True)
        optimizer = torch.optim.SparseAdam(table.parameters(), lr=0.1)
        head = nn.Linear(64, 64)
        for _ in range(3):
            table(torch.randint(1000, (64, 32))).matmul(head.weight).relu().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        results.append(table.weight.detach().clone())
        dense = wide()
        sparse = (dense * (dense > 1)).to_sparse()
        product = torch.sparse.mm(sparse, dense)
        results += [
            product,
            (sparse.to_dense() @ product).tanh(),
            torch.sparse_coo_tensor(sparse._indices(), sparse._values() * 2, sparse.shape),
        ]
        csr = sparse.to_sparse_csr()
        results.append(csr @ dense)
        nested = torch.nested.nested_tensor([torch.randn(5, 64), torch.randn(9, 64)], layout=torch.jagged)
        results.append((nested * 2).values().clone())
        scale = torch.quantize_per_tensor(dense, 0.1, 0, torch.qint8)
        results.append(scale.dequantize() @ dense)
        return results

    same_in_budget(program, ratios=(0.8,), evictions=False)


def test_tensor_subclass():
    class Tagged(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            return super().__torch_function__(func, types, args, kwargs or {})

    def program():
        w = nn.Parameter(wide() / 16)
        return step(
            lambda: ((wide().as_subclass(Tagged) @ w).tanh() @ w).square().mean().as_subclass(torch.Tensor), [w]
        )

    same_in_budget(program)


def test_meta_and_empty_tensors():
    def program():
        meta = torch.empty(4, 4, device="meta") + 1
        empty = torch.randn(0, 8)
        return list(meta.shape), empty @ torch.randn(8, 3), torch.cat([empty, torch.randn(2, 8)]), wide().sum()

    same_in_budget(program, ratios=(1.0,), evictions=False)


@pytest.mark.parametrize("change", ["dtype", "denormals"])
def test_settings_that_change_between_an_op_and_its_replay(change):
    def program():
        kept = []
        for on in (True, False):
            if change == "dtype":
                torch.set_default_dtype(torch.float64 if on else torch.float32)
            else:
                torch.set_flush_denormal(on)
            kept += [torch.arange(10000) / 7, torch.randn(100, 100) * 1e-38 * 0.1]
            kept += [kept[-1] @ torch.eye(100) for _ in range(20)]
        return [t.clone() for t in kept]

    try:
        same_in_budget(program)
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_flush_denormal(False)


def test_an_explicit_generator_advances_once_when_an_op_is_tried_again():
    def program(memory=None):
        gap = torch.zeros(600_000, requires_grad=True)
        weights = torch.rand(64, 4096)
        if memory:
            memory.commit(weights)
        del gap
        generator = torch.Generator().manual_seed(5)
        return torch.multinomial(weights, 2000, generator=generator), generator.get_state()

    torch.manual_seed(1)
    expected = program()
    moved = 0
    for room in (3.5, 3.6, 3.7, 3.8):
        torch.manual_seed(1)
        with coop.budget(int(room * 2**20)) as memory:
            assert_same(expected, program(memory))
        moved += memory.stats().moves
    assert moved > 0


def test_custom_operators_call_ops_that_are_seen():
    table = None

    @torch.library.custom_op("coop_tests::lookup", mutates_args=())
    def lookup(x: torch.Tensor) -> torch.Tensor:
        return x + table

    @torch.library.custom_op("coop_tests::large", mutates_args=())
    def large(x: torch.Tensor) -> torch.Tensor:
        return torch.ones(600, 1000) @ torch.ones(1000, 600) + x

    def program():
        nonlocal table
        table = wide().exp()
        kept = [wide()]
        for _ in range(20):
            kept.append((kept[-1] @ kept[-1]).tanh())
        result = lookup(kept[3])
        table = None
        return [result, *(k.clone() for k in kept)]

    same_in_budget(program)
    with coop.budget("4MiB") as memory, pytest.raises(coop.OutOfBudget):
        large(torch.ones(600, 600))
    assert memory.stats().budget == 4 << 20


def test_partial_writes_into_memory_that_nothing_has_set():
    with coop.budget("500KiB", checks=2) as memory:
        for _ in range(6):
            b = torch.empty(4, 100, 100)
            b[:2] = torch.randn(2, 100, 100)
            kept = [torch.randn(100, 100)]
            for _ in range(12):
                kept.append((kept[-1] @ kept[-1]).tanh() + 0.1)
            (b[:2] * 2).sum()
        assert memory.stats().evictions > 0


def test_one_op_overwrites_a_tensor_and_what_was_made_from_it():
    """The second is committed before the first changes, so it is a source. Its dependents have to
    be committed too."""

    def program():
        x = torch.tensor([i / 4096 for i in range(4096)])  # it cannot be recomputed
        y = x.exp()
        z = y.sin()
        others = [y.tanh(), z.cos()]
        pressure = [torch.randn(4096).exp() for _ in range(9)]
        torch._foreach_add_([z, y, x], 0.5)
        return x, y, z, others, pressure

    same_in_budget(program, ratios=(0.7, 0.5), checks=2)
    same_in_budget(program, ratios=(0.7,), checks=3, tiny=0)
