"""Programs with several threads: each has its own random state, and none sees another's replays."""

import copy
import threading

import torch

import coop
from networks import transformer
from same import same_in_budget


def test_second_thread_that_was_started_inside_the_scope():
    def program():
        model = transformer()
        results = {}

        def work(i):
            generator = torch.Generator().manual_seed(i)
            model_copy = copy.deepcopy(model).eval()
            x = torch.randn(8, 64, 64, generator=generator)
            out = model_copy(x)
            out.square().mean().backward()
            results[i] = [p.grad.clone() for p in model_copy.parameters()], out.detach()

        threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        return [results[i] for i in range(3)]

    same_in_budget(program, ratios=(0.7,), evictions=False)


def test_threads_do_not_see_each_others_replays():
    """A replay borrows the global random state; draws on another thread must not notice."""

    def program():
        draws = []

        def draw():
            generator = torch.Generator().manual_seed(5)
            for _ in range(200):
                draws.append(torch.randn(600, generator=generator).sum())

        x = torch.randn(128, 128)
        kept = [torch.nn.functional.dropout(x @ x, 0.5) for _ in range(20)]
        thread = threading.Thread(target=draw)
        thread.start()
        total = sum((k.tanh() @ x).sum() for _ in range(5) for k in kept)
        thread.join()
        return torch.stack(draws), total

    same_in_budget(program, ratios=(0.5,))


def test_leaving_the_scope_while_another_thread_runs_ops():
    done = threading.Event()
    failures = []

    def work():
        try:
            while not done.is_set():
                x = torch.randn(100, 100)
                (x @ x).tanh().sum()
        except Exception as error:
            failures.append(error)

    for _ in range(8):
        done.clear()
        with coop.budget("2MiB"):
            thread = threading.Thread(target=work)
            thread.start()
            kept = [torch.randn(100, 100) / 10]
            for _ in range(60):
                kept.append((kept[-1] @ kept[-1]).tanh() + 0.1)
        sums = [float(k.sum()) for k in kept]
        done.set()
        thread.join()
        assert len(sums) == 61
    assert not failures


def test_random_numbers_of_one_thread_while_another_brings_tensors_back():
    def draws():
        return [torch.rand(64).sum().item() for _ in range(3000)]

    torch.manual_seed(3)
    expected = draws()
    with coop.budget("4MiB") as memory:
        kept = [torch.rand(256, 256) * 1.0 for _ in range(40)]
        torch.manual_seed(3)
        actual = []
        thread = threading.Thread(target=lambda: actual.extend(draws()))
        thread.start()
        while thread.is_alive():
            for t in kept:
                memory.materialise(t)
        thread.join()
        assert memory.stats().rematerialisations > 0
    assert actual == expected
