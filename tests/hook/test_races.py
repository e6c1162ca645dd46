"""Threads that drop tensors while others evict, move and evacuate them, and while the scope
ends."""

import threading
import time

import pytest
import torch

import coop


def let_go_beside(rounds, seconds=30.0):
    """Each round, two threads pass tensors to each other and drop them, this one evicts, and the
    scope ends meanwhile."""
    stop_at = time.monotonic() + seconds
    done = 0
    for _ in range(rounds):
        stop = threading.Event()
        dropped = []

        def work(stop=stop, dropped=dropped):
            x = torch.ones(32, 32)
            while not stop.is_set():
                try:
                    dropped.append([(x + i).exp() for i in range(4)])
                except (RuntimeError, coop.OutOfBudget):
                    continue  # one was evicted when the scope ended
                if len(dropped) > 2:
                    dropped.pop(0)

        threads = [threading.Thread(target=work) for _ in range(2)]
        with coop.budget("160KiB", tiny=0):
            for thread in threads:
                thread.start()
            kept = []
            for i in range(6):
                try:
                    kept.append((torch.ones(40, 40) * i).exp())
                except coop.OutOfBudget:
                    kept.clear()
        stop.set()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        done += 1
        if time.monotonic() > stop_at:
            break
    return done


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*tensors were evicted when the budget's scope ended")
def test_scope_ends_while_other_threads_let_go():
    torch.set_num_threads(1)
    assert let_go_beside(4000, seconds=20) >= 50
