"""A forked child reads what was evicted in its parent, to the same bits, on threads of its own."""

import os
import signal
import threading

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import coop


def in_child(work):
    """What the work returned in a forked process, as text; fails if it does not return in a
    minute."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # ends it
        status = 1
        try:
            os.write(writer, work().encode())
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    assert status == 0, f"the child ended with {status}"
    return text


def digest(tensor):
    return tensor.double().sum().item().hex()


def evicted_result(memory, kept=1 << 20):
    """A result of sums that are split among threads: another number of threads would give other
    bits."""
    a = torch.randn(300, 400)
    result = (a @ a.T).softmax(-1).cumsum(0)
    copy = result.clone()
    memory.commit(copy)
    torch.empty(memory.stats().budget - kept, dtype=torch.uint8)
    assert memory.state(result) in ("evicted", "swapped")
    return result, copy


@pytest.mark.parametrize("swap", [None, "32MiB"])
def test_child_reads_an_evicted_tensor(swap):
    torch.set_num_threads(2)
    with coop.budget("4MiB", swap=swap) as memory:
        result, copy = evicted_result(memory, 4096 if swap else 1 << 20)
        assert in_child(lambda: digest(result)) == digest(copy)
        assert digest(result) == digest(copy)
        memory.check()


def test_child_forked_while_other_threads_work():
    torch.set_num_threads(2)
    with coop.budget("8MiB") as memory:
        stop = threading.Event()

        def work():
            x = torch.randn(64, 64)
            while not stop.is_set():
                x = (x @ x).tanh()

        result, copy = evicted_result(memory)
        thread = threading.Thread(target=work)
        thread.start()
        try:
            expected = digest(copy)
            for _ in range(10):
                assert in_child(lambda: digest(result)) == expected
        finally:
            stop.set()
            thread.join()


def test_child_opens_a_budget_of_its_own():
    torch.set_num_threads(2)

    def work():
        torch.set_num_threads(1)  # plain PyTorch would wait for threads that do not exist
        with coop.budget("4MiB") as memory:
            result, copy = evicted_result(memory)
            return str(torch.equal(result, copy))

    assert in_child(work) == "True"


class Rows(Dataset):
    def __init__(self, table):
        self.table = table

    def __len__(self):
        return len(self.table)

    def __getitem__(self, index):
        return self.table[index]


def test_workers_of_a_data_loader_read_an_evicted_table():
    torch.set_num_threads(2)
    with coop.budget("4MiB") as memory:
        table, copy = evicted_result(memory)
        loader = DataLoader(Rows(table), batch_size=50, num_workers=2, multiprocessing_context="fork", timeout=60)
        batches = [batch.clone() for batch in loader]
        assert torch.equal(torch.cat(batches), copy)
