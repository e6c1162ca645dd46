"""Shared by all tests: one comparison with plain eager, bit for bit."""

import os

# Some machines die with SIGILL in plain torch's bf16 matmul.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Waiting threads that spin take time from those that work.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import pytest
import torch


@pytest.fixture(autouse=True)
def two_threads():
    torch.set_num_threads(2)
