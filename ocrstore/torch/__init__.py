"""Stores as PyTorch data sets: batches by reference, yours to write on, in flat memory."""

from typing import TYPE_CHECKING, Any

from ocrstore.torch.dataset import OCRStoreDataset
from ocrstore.torch.records import Batch, Sample
from ocrstore.torch.samplers import ResumableSampler, WindowShuffleSampler, sampler_state

if TYPE_CHECKING:
    from ocrstore.torch.datamodule import OCRDataModule
    from ocrstore.torch.loader import PrefetchLoader
    from ocrstore.torch.prefetch import Prefetcher

__all__ = [
    "Batch",
    "OCRDataModule",
    "OCRStoreDataset",
    "PrefetchLoader",
    "Prefetcher",
    "ResumableSampler",
    "Sample",
    "WindowShuffleSampler",
    "sampler_state",
]


# Lightning takes seconds to import, and workers need none of these
_HOMES = {
    "OCRDataModule": "ocrstore.torch.datamodule",
    "PrefetchLoader": "ocrstore.torch.loader",
    "Prefetcher": "ocrstore.torch.prefetch",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)
