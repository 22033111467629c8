"""Base classes for Lightning classes that the Trainers of both Lightning packages accept.

`lightning.pytorch` and `pytorch_lightning` have the same classes twice, and each Trainer takes its
own only. A class here inherits from every installed one, so what inherits from it suits both.
"""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ocrstore.errors import MissingPackageError

__all__ = [
    "Callback",
    "L",
    "LightningDataModule",
    "LightningModule",
    "MisconfigurationException",
    "ModelCheckpoint",
    "RichProgressBar",
    "SIGTERMException",
    "TorchCheckpointIO",
    "every",
]

# each package with the one of its Fabric; the first that is installed trains in `ocrstore train`
_PACKAGES = {"lightning.pytorch": "lightning.fabric", "pytorch_lightning": "lightning_fabric"}


def _installed() -> dict[ModuleType, ModuleType]:
    names = [name for name in _PACKAGES if find_spec(name.partition(".")[0]) is not None]
    if not names:
        raise MissingPackageError(
            "Lightning is not installed: pip install 'ocrstore[lightning]', or, for projects that"
            " import pytorch_lightning, 'ocrstore[pytorch-lightning]'",
            name="lightning",
        )
    load = importlib.import_module
    return {load(name): load(_PACKAGES[name]) for name in names}


_INSTALLED = _installed()


def every(name: str) -> tuple[type[Any], ...]:
    """Return the class `name` ("loggers.TensorBoardLogger") of each installed package."""
    return tuple(_attribute(package, name) for package in _INSTALLED)


def _attribute(package: ModuleType, path: str) -> type[Any]:
    found: Any = package
    for name in path.split("."):
        found = getattr(found, name)
    assert isinstance(found, type)
    return found


def _joined(bases: tuple[type[Any], ...], **attributes: Any) -> type[Any]:
    return type(bases[0].__name__, bases, {"__module__": __name__, **attributes})


# A Trainer asks whether a hook is overridden by comparing its code with that of the Trainer's own
# package, so the hooks of the other package would count as ours. None counts as not overridden.
_NO_HOOKS = dict.fromkeys(
    ["configure_model", "configure_sharded_model"]
    + [f"{stage}_dataloader" for stage in ("train", "val", "test", "predict")]
)


if TYPE_CHECKING:
    import lightning.pytorch as L  # noqa: N812  # its own documentation calls it so
    from lightning.fabric.plugins import TorchCheckpointIO
    from lightning.fabric.utilities.exceptions import MisconfigurationException
    from lightning.pytorch import Callback, LightningDataModule, LightningModule
    from lightning.pytorch.callbacks import ModelCheckpoint, RichProgressBar
    from lightning.pytorch.utilities.exceptions import SIGTERMException
else:
    L = next(iter(_INSTALLED))
    """The package whose Trainer is used where ocrstore makes one."""
    Callback = _joined(every("Callback"))
    MisconfigurationException = L.utilities.exceptions.MisconfigurationException
    LightningDataModule = _joined(every("LightningDataModule"))
    LightningModule = _joined(every("LightningModule"), **_NO_HOOKS)
    ModelCheckpoint = _joined(every("callbacks.ModelCheckpoint"))
    RichProgressBar = _joined(every("callbacks.RichProgressBar"))
    SIGTERMException = _joined(every("utilities.exceptions.SIGTERMException"))
    TorchCheckpointIO = _joined(
        tuple(_attribute(fabric, "plugins.TorchCheckpointIO") for fabric in _INSTALLED.values())
    )
