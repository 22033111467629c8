"""DBNet's loss: balanced BCE, L1 and Dice; every sum over pixels is made in float32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from ocrstore.dbnet.network import Output

_EPSILON = 1e-6
_FRACTION = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class LossParams:
    """The weights of the three terms, and how many negatives count for each positive."""

    prob_weight: float = 5.0
    thresh_weight: float = 10.0
    binary_weight: float = 1.0
    negative_ratio: float = 3.0


class Losses(NamedTuple):
    """The weighted sum and its parts (unweighted), each a float32 scalar."""

    total: Tensor
    prob: Tensor
    thresh: Tensor
    binary: Tensor


def dbnet_loss(
    output: Output,
    *,
    prob_maps: Tensor,
    prob_masks: Tensor,
    thresh_maps: Tensor,
    thresh_masks: Tensor,
    params: LossParams | None = None,
) -> Losses:
    """Return the losses of a batch; finite, with finite gradients, for any mask.

    Maps may be float16 as stored, masks uint8: both are made float32 here, before any arithmetic.
    """
    params = params or LossParams()
    if output.thresh is None or output.binary is None:
        raise ValueError("the loss needs the threshold head: call the model with thresholds=True")
    with torch.autocast(output.logits.device.type, enabled=False):
        prob_map, prob_mask = prob_maps.float(), prob_masks.float()
        prob = balanced_bce(output.logits, prob_map, prob_mask, ratio=params.negative_ratio)
        thresh = masked_l1(output.thresh, thresh_maps.float(), thresh_masks.float())
        binary = dice(output.binary, prob_map, prob_mask)
        weighted_maps = params.prob_weight * prob + params.thresh_weight * thresh
        total = weighted_maps + params.binary_weight * binary
    return Losses(total, prob, thresh, binary)


def balanced_bce(logits: Tensor, target: Tensor, mask: Tensor, *, ratio: float = 3.0) -> Tensor:
    """Return the mean BCE over all positives and the hardest negatives, `ratio` for each positive.

    The balance is struck over the whole batch. Without any positive, no negative counts: zero.
    """
    logits, target, mask = logits.float(), target.float(), mask.float()
    loss = functional.binary_cross_entropy_with_logits(logits, target, reduction="none")
    counts = mask > 0.5
    positive = counts & (target > 0.5)
    negative = counts & (target <= 0.5)
    # counted in integers: float32 would round beyond 16.7 million pixels, MPS has no float64
    n_positive, n_negative = positive.count_nonzero(), negative.count_nonzero()
    allowed = n_positive * round(ratio * _FRACTION) // _FRACTION
    n_negative = torch.minimum(n_negative, allowed)
    weight = positive + _weights_of_largest((loss * negative).detach(), negative, n_negative)
    return (loss * weight).sum() / (n_positive + n_negative).clamp(min=1)


def _weights_of_largest(values: Tensor, among: Tensor, count: Tensor) -> Tensor:
    """Return 1 for the `count` largest values, which are not negative; equal last ones share.

    `topk` would need `count` on the host, for which the device has to finish everything before, and
    the loss could not be compiled as one graph. Floats that are not negative are ordered as their
    bits are, so the last value that counts is found bit by bit.
    """
    bits = values.view(torch.int32)
    last = torch.zeros((), dtype=torch.int32, device=values.device)
    for bit in range(30, -1, -1):
        higher = last | (1 << bit)
        last = torch.where((bits >= higher).count_nonzero() >= count, higher, last)
    above = bits > last
    equal = (bits == last) & among
    share = (count - above.count_nonzero()) / equal.count_nonzero().clamp(min=1)
    return above + equal * share


def masked_l1(value: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    """Return the mean absolute difference where the mask is 1; 0 for an empty mask."""
    difference = (value.float() - target.float()).abs() * mask.float()
    return difference.sum() / mask.float().sum().clamp(min=1.0)


def dice(value: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    """Return 1 - 2 |A and B| / (|A| + |B|) over the masked batch; zero without any positive.

    (Without positives the ratio is 0 and has no gradient: the term would be a constant 1.)
    """
    value, target, mask = value.float(), target.float(), mask.float()
    common = (value * target * mask).sum()
    positives = (target * mask).sum()
    whole = (value * mask).sum() + positives
    loss = 1.0 - 2.0 * common / (whole + _EPSILON)
    return torch.where(positives > 0, loss, torch.zeros_like(loss))
