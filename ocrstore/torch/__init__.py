"""Stores as PyTorch data sets: batches by reference, yours to write on, in flat memory."""

from typing import TYPE_CHECKING, Any

from ocrstore.torch.dataset import OCRStoreDataset
from ocrstore.torch.records import Batch, Sample

if TYPE_CHECKING:
    from ocrstore.torch.datamodule import OCRDataModule
    from ocrstore.torch.loader import PrefetchLoader
    from ocrstore.torch.prefetch import Prefetcher
    from ocrstore.torch.samplers import ResumableSampler, WindowShuffleSampler, sampler_state

# Lightning takes seconds to import, and workers need none of these
_HOMES = {
    "OCRDataModule": "ocrstore.torch.datamodule",
    "PrefetchLoader": "ocrstore.torch.loader",
    "Prefetcher": "ocrstore.torch.prefetch",
    "ResumableSampler": "ocrstore.torch.samplers",
    "WindowShuffleSampler": "ocrstore.torch.samplers",
    "sampler_state": "ocrstore.torch.samplers",
}

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
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
