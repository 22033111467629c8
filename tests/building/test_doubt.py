"""Polygons that lie outside of their pictures: the dialect is doubted, and confirmed by name."""

import pytest

import ocrstore
from ocrstore.errors import SourceError
from tests.building.conftest import QUADS, SIZE, kinds

FAR = [[[x + 1000, y] for x, y in quad] for quad in QUADS]


def build(dataset, **options):
    """Build with the annotations of a data set; the dialect is detected."""
    return ocrstore.build(
        dataset.images, dataset.store, annotations=dataset.gt, size=SIZE, **{"workers": 0} | options
    )


@pytest.mark.parametrize("workers", [0, 1])
def test_most_polygons_outside_stop_a_build_early(dataset, workers):
    """The error names the dialect, the numbers and what to try; --format goes on from there."""
    for number in range(30):
        dataset.add(f"{number:02}.jpg", seed=number, quads=[*FAR, QUADS[0]])
    told = []
    with pytest.raises(SourceError) as caught:
        build(dataset, workers=workers, progress=lambda now: told.append(now.done))
    message = str(caught.value)
    assert "16 of 24 polygons" in message and "probably not icdar" in message
    assert "coco" in message and "--annotations" in message and "--format icdar" in message
    assert max(told) == 8 and not dataset.store.exists()
    report = build(dataset, format="icdar")
    assert report.samples == 30 and report.polygons == 90 and kinds(report) == {"polygon-outside"}


def test_few_pictures_are_judged_at_the_end(dataset):
    """Three pictures with eight polygons each are enough, too."""
    for number in range(3):
        dataset.add(f"{number}.jpg", seed=number, quads=FAR * 4)
    with pytest.raises(SourceError, match="24 of 24 polygons"):
        build(dataset)


@pytest.mark.parametrize(
    ("pictures", "quads"), [(10, [*FAR[:1], QUADS[0]]), (9, FAR[:1]), (10, QUADS)]
)
def test_no_doubt(dataset, pictures, quads):
    """Just half of them outside, or fewer than twenty polygons: a note at most."""
    for number in range(pictures):
        dataset.add(f"{number}.jpg", seed=number, quads=quads)
    assert build(dataset).samples == pictures
