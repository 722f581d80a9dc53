"""What bf16 means, in plain torch: how numbers are rounded to it. Arithmetic is float32's."""

import torch
from torch import Tensor


def narrow(x: Tensor) -> Tensor:
    """Return float32 numbers in bf16: the nearest, ties to even. A NaN stays one."""
    return x.to(torch.bfloat16)


def widen(bits: Tensor) -> Tensor:
    """Return the float32 numbers that bits [..] (int16) of bf16 stand for."""
    return bits.view(torch.bfloat16).to(torch.float32)
