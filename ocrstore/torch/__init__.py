"""Stores as PyTorch data sets: batches by reference, yours to write on, in flat memory."""

from typing import TYPE_CHECKING, Any

from ocrstore.torch.dataset import OCRStoreDataset
from ocrstore.torch.loader import PrefetchLoader
from ocrstore.torch.prefetch import Prefetcher
from ocrstore.torch.records import Batch, Sample
from ocrstore.torch.samplers import ResumableSampler, WindowShuffleSampler, sampler_state

if TYPE_CHECKING:
    from ocrstore.torch.datamodule import OCRDataModule

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


def __getattr__(name: str) -> Any:
    # Lightning takes seconds to import, and workers do not need it
    if name == "OCRDataModule":
        from ocrstore.torch.datamodule import OCRDataModule

        return OCRDataModule
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
