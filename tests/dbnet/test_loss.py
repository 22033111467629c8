"""The loss: values computed by hand, masks, mining, degenerate batches, precision."""

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ocrstore.dbnet.loss import LossParams, balanced_bce, dbnet_loss, dice, masked_l1
from ocrstore.dbnet.network import DBNet, ModelConfig, Output

LOG2 = math.log(2)


def t(*values):
    """Return a (1, 1, 1, n) tensor."""
    return torch.tensor(values, dtype=torch.float32).reshape(1, 1, 1, -1)


def test_bce_takes_three_hard_negatives_for_each_positive():
    """One positive at logit 0 (ln 2) and the three worst of five negatives, over 4."""
    logits = t(0, 2, 0, 1, -5, -9)
    target = t(1, 0, 0, 0, 0, 0)

    def negative(x):
        return math.log1p(math.exp(x))

    expected = (LOG2 + negative(2) + negative(1) + negative(0)) / 4
    assert balanced_bce(logits, target, torch.ones_like(target)).item() == pytest.approx(expected)


def test_bce_uses_all_negatives_when_they_are_few():
    """Two positives would take six negatives; there is one."""
    value = balanced_bce(t(0, 0, 0), t(1, 1, 0), t(1, 1, 1)).item()
    assert value == pytest.approx(LOG2)


def test_bce_leaves_masked_pixels_out():
    """A masked positive and a masked hard negative do not count."""
    value = balanced_bce(t(0, -50, 50, 0), t(1, 1, 0, 0), t(1, 0, 0, 1)).item()
    assert value == pytest.approx(LOG2)


def test_mining_goes_over_the_batch():
    """The positive of one picture lets the hard negatives of the other count."""
    logits = torch.cat([t(0, -30), t(3, 3)])
    target = torch.cat([t(1, 0), t(0, 0)])
    expected = (LOG2 + 2 * math.log1p(math.exp(3)) + math.log1p(math.exp(-30))) / 4
    assert balanced_bce(logits, target, torch.ones_like(target)).item() == pytest.approx(expected)


def test_l1_is_the_mean_inside_the_mask():
    """|0.5 - 0.3| and |0.1 - 0.7| over two pixels; the third is masked."""
    value = masked_l1(t(0.5, 0.1, 9.0), t(0.3, 0.7, 0.0), t(1, 1, 0)).item()
    assert value == pytest.approx((0.2 + 0.6) / 2)


def test_dice_by_hand():
    """1 - 2 * (0.5 + 1) / (0.5 + 1 + 0.5 + 2); the masked pixel does not count."""
    value = dice(t(0.5, 1.0, 0.5, 1.0), t(1, 1, 0, 1), t(1, 1, 1, 0)).item()
    assert value == pytest.approx(1 - 3 / 4)


def output(logits, thresh, binary):
    """Return a model's output that a gradient can reach."""
    return Output(*(x.clone().requires_grad_() for x in (logits, thresh, binary)))


def test_the_sum_has_the_papers_weights():
    """5 BCE + 10 L1 + 1 Dice, or the weights asked for."""
    out = output(t(0, 0), t(0.5, 0.5), t(0.5, 0.5))
    maps = {
        "prob_maps": t(1, 0),
        "prob_masks": t(1, 1),
        "thresh_maps": t(0.3, 0.3),
        "thresh_masks": t(1, 0),
    }
    losses = dbnet_loss(out, **maps)
    assert losses.prob.item() == pytest.approx(LOG2)
    assert losses.thresh.item() == pytest.approx(0.2)
    assert losses.binary.item() == pytest.approx(1 - 1 / 2)
    assert losses.total.item() == pytest.approx(5 * LOG2 + 2 + 0.5)
    other = dbnet_loss(
        out, **maps, params=LossParams(prob_weight=1, thresh_weight=0, binary_weight=2)
    )
    assert other.total.item() == pytest.approx(LOG2 + 1)


DEGENERATE = {
    "no positives": (0.0, 1, 0),
    "nothing but ignored": (0.0, 0, 0),
    "positives that are all masked": (1.0, 0, 0),
    "nothing but positives": (1.0, 1, 1),
}


@pytest.mark.parametrize("case", DEGENERATE)
def test_degenerate_batches_stay_finite(case):
    """Loss and gradients are finite whatever the masks leave, through the whole network."""
    prob, mask, thresh_mask = DEGENERATE[case]
    net = DBNet(ModelConfig(backbone="resnet10", width=16, inner=16)).train()
    shape = (2, 1, 32, 32)
    losses = dbnet_loss(
        net(torch.zeros((2, 3, 32, 32), dtype=torch.uint8)),
        prob_maps=torch.full(shape, prob, dtype=torch.float16),
        prob_masks=torch.full(shape, mask, dtype=torch.uint8),
        thresh_maps=torch.full(shape, 0.3, dtype=torch.float16),
        thresh_masks=torch.full(shape, thresh_mask, dtype=torch.uint8),
    )
    assert all(torch.isfinite(x) for x in losses)
    losses.total.backward()
    assert all(torch.isfinite(p.grad).all() for p in net.parameters() if p.grad is not None)
    if case in ("nothing but ignored", "positives that are all masked"):
        assert losses.total.item() == 0


@pytest.mark.parametrize("extreme", [-1e4, 1e4])
def test_extreme_logits_stay_finite(extreme):
    """Logits that would make exp overflow give finite losses and gradients."""
    logits = t(extreme, extreme)
    out = output(logits, t(0.5, 0.5), t(0.0, 1.0))
    losses = dbnet_loss(
        out,
        prob_maps=t(1, 0),
        prob_masks=t(1, 1),
        thresh_maps=t(0.3, 0.7),
        thresh_masks=t(1, 1),
    )
    losses.total.backward()
    assert torch.isfinite(losses.total) and torch.isfinite(out.logits.grad).all()


def test_sums_are_made_in_float32():
    """A float16 sum over these pixels is infinite (65504 at most); the loss is right."""
    shape = (2, 1, 320, 320)
    ones = torch.ones(shape, dtype=torch.float16)
    assert torch.isinf(ones.sum(dtype=torch.float16))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        losses = dbnet_loss(
            Output(torch.zeros(shape, dtype=torch.float16), 0.5 * ones, 0.5 * ones),
            prob_maps=ones,
            prob_masks=torch.ones(shape, dtype=torch.uint8),
            thresh_maps=0.25 * ones,
            thresh_masks=torch.ones(shape, dtype=torch.uint8),
        )
    assert all(x.dtype == torch.float32 for x in losses)
    assert losses.prob.item() == pytest.approx(LOG2)
    assert losses.thresh.item() == pytest.approx(0.25)
    assert losses.binary.item() == pytest.approx(1 - 2 * 0.5 / 1.5)


def test_stored_and_fresh_maps_agree():
    """Rounding maps to float16 moves the loss by at most 10 * 2^-12: half an ulp below 1."""
    g = torch.Generator().manual_seed(1)
    shape = (1, 1, 64, 64)
    prob = (torch.rand(shape, generator=g) > 0.7).float()
    thresh = 0.3 + 0.4 * torch.rand(shape, generator=g)
    mask = torch.ones(shape, dtype=torch.uint8)
    out = Output(torch.randn(shape, generator=g), torch.rand(shape, generator=g), prob * 0.8)
    fresh = dbnet_loss(out, prob_maps=prob, prob_masks=mask, thresh_maps=thresh, thresh_masks=mask)
    stored = dbnet_loss(
        out, prob_maps=prob.half(), prob_masks=mask, thresh_maps=thresh.half(), thresh_masks=mask
    )
    assert stored.prob == fresh.prob and stored.binary == fresh.binary
    assert abs(stored.total - fresh.total).item() <= 10 * 2**-12


def test_an_inference_output_is_refused():
    """Without a threshold map there is no loss, and the message says what to do."""
    with pytest.raises(ValueError, match="thresholds=True"):
        dbnet_loss(
            Output(t(0)), prob_maps=t(0), prob_masks=t(1), thresh_maps=t(0), thresh_masks=t(0)
        )


class Fetches(TorchDispatchMode):
    """Counts the scalars that are fetched from tensors; on a GPU each waits for the device."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        """Count and go on."""
        self.count += function is torch.ops.aten._local_scalar_dense.default
        return function(*args, **(kwargs or {}))


def random_batch():
    """Return maps of a batch with some text, and an output for it."""
    maps = {
        "prob_maps": (torch.rand(2, 1, 16, 16) < 0.1).half(),
        "prob_masks": (torch.rand(2, 1, 16, 16) < 0.9).byte(),
        "thresh_maps": torch.rand(2, 1, 16, 16).half(),
        "thresh_masks": (torch.rand(2, 1, 16, 16) < 0.2).byte(),
    }
    out = output(*(torch.randn(2, 1, 16, 16) for _ in range(2)), torch.rand(2, 1, 16, 16))
    return out, maps


def test_the_loss_fetches_nothing():
    """No value goes to the host in the forward and the backward pass."""
    out, maps = random_batch()
    with Fetches() as fetches:
        dbnet_loss(out, **maps).total.backward()
        assert fetches.count == 0
        out.logits.sum().item()
    assert fetches.count == 1


def test_the_loss_compiles_as_one_graph():
    """Without graph breaks, for batches with and without text, and the same value."""
    compiled = torch.compile(dbnet_loss, fullgraph=True, backend="eager")
    for text in (True, False):
        out, maps = random_batch()
        maps["prob_maps"] *= text
        torch.testing.assert_close(compiled(out, **maps), dbnet_loss(out, **maps))


@pytest.mark.parametrize("ratio", [0.5, 3.0, 100.0])
def test_mining_is_that_of_topk(ratio):
    """Random logits, some of them equal: value and gradient are those of sorting."""
    logits = (torch.randn(4, 1, 20, 20) * 4).round().div(2).requires_grad_()
    target = (torch.rand(4, 1, 20, 20) < 0.05).float()
    mask = (torch.rand(4, 1, 20, 20) < 0.9).float()
    value = balanced_bce(logits, target, mask, ratio=ratio)
    loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, target, reduction="none")
    negatives = loss[(mask > 0) & (target == 0)]
    positives = loss[(mask > 0) & (target == 1)]
    hardest = negatives.topk(min(len(negatives), int(len(positives) * ratio)))[0]
    expected = torch.cat([positives, hardest]).mean()
    torch.testing.assert_close(value, expected)
    (gradient,) = torch.autograd.grad(value, logits)
    (other,) = torch.autograd.grad(expected, logits)
    torch.testing.assert_close(gradient.sum(), other.sum())
