"""What a printed script needs: everything that its lines name, and `compare`."""

import copy
import pickle
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch.nn import functional as F

from hunt import compare as comparing
from hunt.ops import *  # noqa: F403
from hunt.program import SIZES, Program
from hunt.scenes import *  # noqa: F403
from hunt.scenes import BLOCKS, Machine
from hunt.shapes import distinct, f32, fit, flt, index, mat, square, vec
