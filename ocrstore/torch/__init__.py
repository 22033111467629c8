"""Stores as PyTorch data sets: batches by reference, with tensors that you may modify in place."""

from typing import TYPE_CHECKING, Any

from ocrstore.errors import needs
from ocrstore.packages import explain_imports

with needs("torch"), explain_imports():
    from ocrstore.torch.batch import Batch, Sample
    from ocrstore.torch.dataset import OCRStoreDataset

if TYPE_CHECKING:
    from ocrstore.torch.datamodule import LoadingStatistics, OCRDataModule
    from ocrstore.torch.prefetch import Prefetcher, PrefetchLoader
    from ocrstore.torch.samplers import ResumableSampler, WindowShuffleSampler, sampler_state
    from ocrstore.torch.statistics import log_every_n

# imported at first access: Lightning takes seconds to import, and workers need none of these
_LAZY = {
    "LoadingStatistics": "ocrstore.torch.datamodule",
    "OCRDataModule": "ocrstore.torch.datamodule",
    "PrefetchLoader": "ocrstore.torch.prefetch",
    "Prefetcher": "ocrstore.torch.prefetch",
    "ResumableSampler": "ocrstore.torch.samplers",
    "WindowShuffleSampler": "ocrstore.torch.samplers",
    "log_every_n": "ocrstore.torch.statistics",
    "sampler_state": "ocrstore.torch.samplers",
}

__all__ = [
    "Batch",
    "LoadingStatistics",
    "OCRDataModule",
    "OCRStoreDataset",
    "PrefetchLoader",
    "Prefetcher",
    "ResumableSampler",
    "Sample",
    "WindowShuffleSampler",
    "log_every_n",
    "sampler_state",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    with needs("lightning"), explain_imports():
        value = globals()[name] = getattr(importlib.import_module(_LAZY[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
