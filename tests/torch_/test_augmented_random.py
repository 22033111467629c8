"""The random numbers of a transform: apart for each part, the same for the same entropy."""

from types import SimpleNamespace

import numpy as np

from ocrstore.torch.augmented import PartGenerators


def numbers(generators, parts, entropy):
    """What each part draws first: by numpy, bounded by numpy, by Python."""
    generators.seed(entropy)
    return [
        (
            part.random_generator.random(),
            int(part.random_generator.integers(0, 2**31, dtype=np.int32)),
            part.random_generator.normal(),
            part.py_random.random(),
            part.py_random.gauss(0, 1),
        )
        for part in parts
    ]


def test_each_part_and_each_sample_has_its_own():
    """No number is drawn twice, in no part and under no entropy; none depends on earlier ones."""
    parts = [SimpleNamespace() for _ in range(4)]
    generators = PartGenerators(parts)
    entropies = [(seed, row, rank) for seed in (0, 1) for row in (0, 1, 2**40) for rank in (0, 1)]
    drawn = [numbers(generators, parts, entropy) for entropy in entropies]
    for kind in range(5):
        found = [part[kind] for sample in drawn for part in sample]
        assert len(set(found)) == len(found)
    assert [numbers(generators, parts, entropy) for entropy in entropies[::-1]] == drawn[::-1]
    others = [SimpleNamespace() for _ in range(4)]
    assert numbers(PartGenerators(others), others, entropies[3]) == drawn[3]


def test_numbers_are_spread_evenly():
    """Over many samples, what a part draws first is uniform, and two parts are not related."""
    parts = [SimpleNamespace(), SimpleNamespace()]
    generators = PartGenerators(parts)
    drawn = np.array(
        [[n[0] for n in numbers(generators, parts, (7, row, 0))] for row in range(2000)]
    )
    counts = np.stack([np.histogram(column, 10, (0, 1))[0] for column in drawn.T])
    assert (np.abs(counts - 200) < 70).all()
    assert abs(np.corrcoef(drawn.T)[0, 1]) < 0.1


def test_nothing_to_give_numbers_to():
    """A transform without random parts is left alone."""
    PartGenerators([]).seed((1, 2, 3))
