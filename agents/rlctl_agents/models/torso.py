"""Torsos, which map observations of any space to features, one vector per row."""

from __future__ import annotations

import inspect
import math
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from rlctl.spec.schema import Network
from rlctl_agents.models.dense import Linear
from rlctl_agents.models.inputs import KERNEL, Image, ModelError, nets
from rlctl_agents.types import by_name
from rlctl_agents.types.spaces import Box, Discrete, Leaf, MultiBinary, MultiDiscrete, Space, leaf_array, leaves

BLOCK = 4
"""Stride of the Nature CNN's first convolution, and half the side of its kernel; bytes of an int32."""

LARGEST_GRID = 16
"""Most rows and columns with which small_cnn has stride 1, not 2."""


def orthogonal(layer: nn.Linear | nn.Conv2d, gain: float) -> nn.Linear | nn.Conv2d:
    """Initialise a layer with orthogonal weights of a gain, and bias 0; returns it."""
    nn.init.orthogonal_(layer.weight, gain)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


def channels_last(module: nn.Module) -> None:
    """Store convolution weights channels last, like the images: else training on a CPU takes half as long again."""
    for weight in module.parameters():
        if weight.ndim == 4:
            weight.data = weight.data.to(memory_format=torch.channels_last)


class Mlp(nn.Module):
    """Dense layers, each followed by the activation, after its norm if there is one. [N, inputs] -> [N, hidden[-1]]."""

    def __init__(self, inputs: int, network: Network) -> None:
        super().__init__()
        hidden = network.hidden
        self.layers = nn.ModuleList(
            orthogonal(Linear(before, width), gain(network))
            for before, width in zip([inputs, *hidden], hidden, strict=False)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for width in hidden if network.layer_norm)
        self.activate = torch.tanh if network.activation == "tanh" else torch.relu
        self.features = hidden[-1] if hidden else inputs

    def forward(self, x: Tensor) -> Tensor:
        if self.norms:
            for layer, norm in zip(self.layers, self.norms, strict=True):
                x = self.activate(norm(layer(x)))
            return x
        for layer in self.layers:
            x = self.activate(layer(x))
        return x


def gain(network: Network, default: float = math.sqrt(2)) -> float:
    """Gain of the torso's initial weights."""
    return default if network.gains.hidden is None else network.gains.hidden


class Pixels(NamedTuple):
    """Conversion of an image leaf to [N, C, H, W]."""

    channels: int
    height: int
    width: int
    last: bool  # channels come last in the observation
    factor: float  # scale of bytes

    @classmethod
    def of(cls, leaf: Leaf) -> Pixels | None:
        """None unless the leaf is a Box of two or three axes, or a stack; see `Image.of`."""
        image = Image.of(leaf)
        if image is None:
            return None
        assert isinstance(leaf, Box)
        return cls(image.channels, image.height, image.width, image.last, factor=unit_factor(leaf))

    def to_float(self, image: Tensor) -> Tensor:
        """[N, ...] as observed -> [N, C, H, W] in the dtype `computed_in`, channels last in memory, not yet scaled."""
        if image.ndim == 5 and self.last:  # frames of a stack: the colours of the oldest come first
            pixels = image.permute(0, 2, 3, 1, 4).to(computed_in(image.device), memory_format=torch.contiguous_format)
            return pixels.flatten(3).permute(0, 3, 1, 2)
        image = image.flatten(1, 2) if image.ndim == 5 else image
        image = image.unsqueeze(1) if image.ndim == 3 else image.permute(0, 3, 1, 2) if self.last else image
        dtype = computed_in(image.device)
        if self.last or self.channels == 1 or image.device.type != "cpu":
            return image.to(dtype, memory_format=torch.channels_last)
        # plane by plane: torch's own copy between the two layouts takes more than twice as long
        pixels = torch.empty(image.shape, dtype=dtype, memory_format=torch.channels_last)
        for channel in range(self.channels):
            pixels[:, channel].copy_(image[:, channel])
        return pixels

    def scale(self, image: Tensor) -> float:
        """Scale of an image's numbers: 1 for codes, which are real numbers, normalised already."""
        return self.factor if image.dtype == torch.uint8 else 1.0

    def in_blocks(self, image: Tensor) -> bool:
        """True if `to_blocks` can lay this image out."""
        even = self.height % BLOCK == 0 and self.width % BLOCK == 0
        return even and not self.last and image.dtype == torch.uint8 and image.is_contiguous()

    def to_blocks(self, image: Tensor) -> Tensor:
        """[N, C, H, W] bytes -> [N, 16 C, H/4, W/4] in the dtype `computed_in`: each block of 4x4 pixels as channels,
        channels last in memory. Channel 16 c + 4 y + x is pixel (y, x) of channel c. Moves four bytes at a time."""
        count, rows, columns = len(image), self.height // BLOCK, self.width // BLOCK
        words = image.view(torch.int32).view(count, self.channels, rows, BLOCK * columns).transpose(1, 2).contiguous()
        words = words.view(count * rows, self.channels * BLOCK, columns).transpose(1, 2).contiguous()
        pixels = words.view(torch.uint8).view(count, rows, columns, self.channels * BLOCK * BLOCK)
        return pixels.to(computed_in(image.device)).permute(0, 3, 1, 2)


def computed_in(device: torch.device) -> torch.dtype:
    """Dtype of convolutions in this thread: that of autocast, else float32."""
    kind = device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else torch.float32


def unit_factor(box: Box) -> float:
    """Scale that brings unsigned bytes into [0, 1]; 1 for other numbers."""
    if box.dtype != "uint8":
        return 1.0
    high = box.outer().high
    assert not isinstance(high, tuple)
    return 1 / (high or 255)


class Cnn(nn.Module):
    """Base of convolutional nets: conversion of pixels, and a dense layer. A subclass adds the convolutions between."""

    def __init__(self, pixels: Pixels) -> None:
        super().__init__()
        self.pixels = pixels

    def _finish(self, inputs: int, network: Network) -> None:
        self.dense = orthogonal(Linear(inputs, network.width), gain(network))
        self.norm = nn.LayerNorm(network.width) if network.layer_norm else None
        self.features = network.width
        channels_last(self)

    def _features(self, x: Tensor) -> Tensor:
        x = self.dense(x.flatten(1))
        return torch.relu_(x if self.norm is None else self.norm(x))


class SmallCnn(Cnn):
    """One convolution of 16 3x3 kernels and a dense layer, rectified, for grids of few cells. [N, ...] -> [N, width].

    Source: Young and Tian 2019, arXiv:1903.03176, where the dense layer has 128 units.
    """

    def __init__(self, pixels: Pixels, network: Network) -> None:
        super().__init__(pixels)
        stride = 1 if max(pixels.height, pixels.width) <= LARGEST_GRID else 2
        layer = nn.Conv2d(pixels.channels, 16, KERNEL, stride)
        self.convolutions = nn.ModuleList([orthogonal(layer, gain(network))])
        rows, columns = ((size - KERNEL) // stride + 1 for size in (pixels.height, pixels.width))
        self._finish(16 * rows * columns, network)

    def forward(self, image: Tensor) -> Tensor:
        pixels = self.pixels
        return self._features(
            _scaled_convolution(self.convolutions[0], pixels.to_float(image), pixels.scale(image)).relu_()
        )


class NatureCnn(Cnn):
    """Three convolutions and a dense layer, rectified. [N, ...] -> [N, width].

    Source: Mnih et al. 2015, doi:10.1038/nature14236.
    """

    def __init__(self, pixels: Pixels, network: Network) -> None:
        super().__init__(pixels)
        self.convolutions = nn.ModuleList(
            orthogonal(nn.Conv2d(before, after, kernel, stride), gain(network))
            for before, after, kernel, stride in ((pixels.channels, 32, 8, 4), (32, 64, 4, 2), (64, 64, 3, 1))
        )
        rows, columns = ((((size - 8) // 4 + 1) - 4) // 2 + 1 - 2 for size in (pixels.height, pixels.width))
        self._finish(64 * rows * columns, network)

    def forward(self, image: Tensor) -> Tensor:
        x = self._first(image).relu_()
        for convolution in self.convolutions[1:]:
            x = convolution(x).relu_()
        return self._features(x)

    def _first(self, image: Tensor) -> Tensor:
        """The first convolution. 8x8 with stride 4 is 2x2 with stride 1 over blocks of 4x4 pixels: the same sum, but
        faster, with more channels and a cheap layout of the images."""
        layer, pixels = self.convolutions[0], self.pixels
        if not pixels.in_blocks(image):
            return _scaled_convolution(layer, pixels.to_float(image), pixels.scale(image))
        assert isinstance(layer, nn.Conv2d)
        kernel = layer.weight.reshape(-1, pixels.channels, 2, BLOCK, 2, BLOCK).permute(0, 1, 3, 5, 2, 4)
        weight = (kernel.reshape(layer.out_channels, -1, 2, 2) * pixels.factor).to(memory_format=torch.channels_last)
        return functional.conv2d(pixels.to_blocks(image), weight, layer.bias)


class ImpalaCnn(Cnn):
    """Three sections of a convolution, a pooling and two residual blocks, then a dense layer. [N, ...] -> [N, width].

    Source: Espeholt et al. 2018, arXiv:1802.01561, figure 3 right.
    """

    def __init__(self, pixels: Pixels, network: Network) -> None:
        super().__init__(pixels)
        channels = [pixels.channels, 16, 32, 32]
        self.sections = nn.ModuleList(
            orthogonal(nn.Conv2d(before, after, 3, padding=1), gain(network, 1.0))
            for before, after in pairwise(channels)
        )
        self.residuals = nn.ModuleList(
            nn.ModuleList(orthogonal(nn.Conv2d(size, size, 3, padding=1), gain(network, 1.0)) for _ in range(4))
            for size in channels[1:]
        )
        rows, columns = pixels.height, pixels.width
        for _ in channels[1:]:
            rows, columns = (rows + 1) // 2, (columns + 1) // 2
        self._finish(channels[-1] * rows * columns, network)

    def forward(self, image: Tensor) -> Tensor:
        x, factor = self.pixels.to_float(image), self.pixels.scale(image)
        for section, residual in zip(self.sections, self.residuals, strict=True):
            x = functional.max_pool2d(_scaled_convolution(section, x, factor), 3, 2, 1)
            x = x + residual[1](residual[0](x.relu()).relu_())  # type: ignore[index]
            x = x + residual[3](residual[2](x.relu()).relu_())  # type: ignore[index]
            factor = 1.0
        return self._features(x.relu_())


_CNNS = {"small_cnn": SmallCnn, "nature_cnn": NatureCnn, "impala_cnn": ImpalaCnn}


def _scaled_convolution(layer: nn.Module, x: Tensor, factor: float) -> Tensor:
    """Apply the layer to `factor * x`. The weights are scaled instead: they are fewer than the pixels."""
    assert isinstance(layer, nn.Conv2d)
    weight = layer.weight if factor == 1.0 else layer.weight * factor
    return functional.conv2d(x, weight, layer.bias, layer.stride, layer.padding)


class VectorLeaf(NamedTuple):
    """Conversion of a leaf to a vector."""

    width: int
    sizes: tuple[int, ...]  # of one-hot codes; () for numbers
    factor: float

    @classmethod
    def of(cls, leaf: Leaf) -> VectorLeaf:
        match leaf:
            case Box():
                return cls(math.prod(leaf.shape), (), unit_factor(leaf))
            case MultiBinary():
                return cls(leaf.n, (), 1.0)
            case Discrete():
                sizes: tuple[int, ...] = (leaf.n,)
            case MultiDiscrete():
                sizes = leaf.n
        return cls(sum(sizes), sizes, 1.0)

    def encode(self, x: Tensor) -> Tensor:
        """[N, ...] -> [N, width] float32."""
        if not self.sizes:
            factor = self.factor if x.dtype == torch.uint8 else 1.0
            x = x.unsqueeze(-1).flatten(1).to(torch.float32)  # a single number per row: one column
            return x if factor == 1.0 else x * factor
        columns = x.reshape(len(x), -1).unbind(1)
        codes = [functional.one_hot(column, size) for column, size in zip(columns, self.sizes, strict=True)]
        return (codes[0] if len(codes) == 1 else torch.cat(codes, 1)).to(torch.float32)


class Torso(nn.Module):
    """A convolutional net for each image and one mlp for all other leaves together, their features side by side.

    Raises:
        ModelError: the network asked for does not fit the observations.
    """

    def __init__(self, space: Space, network: Network) -> None:
        super().__init__()
        chosen = nets(space, network.torso)
        observed = dict(leaves(space, "obs"))
        self.image_names = [name for name, net in chosen.items() if net != "mlp"]
        images = [(chosen[name], Pixels.of(observed[name])) for name in self.image_names]
        self.cnns = nn.ModuleList(_CNNS[net](pixels, network) for net, pixels in images if pixels is not None)
        self.vectors = {name: VectorLeaf.of(observed[name]) for name, net in chosen.items() if net == "mlp"}
        inputs = sum(leaf.width for leaf in self.vectors.values())
        self.mlp = Mlp(inputs, network) if self.vectors else None
        self.features = network.width * len(self.image_names) + (self.mlp.features if self.mlp else 0)

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        """Observations [N, ...] each -> [N, features]."""
        parts = [cnn(obs[name]) for name, cnn in zip(self.image_names, self.cnns, strict=True)]
        if self.mlp is not None:
            vectors = [leaf.encode(obs[name]) for name, leaf in self.vectors.items()]
            parts.append(self.mlp(vectors[0] if len(vectors) == 1 else torch.cat(vectors, 1)))
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


def make_torso(space: Space, network: Network) -> nn.Module:
    """Make the torso that the spec names: attribute `features`, and a map of observations [N, ...] to [N, features].

    A user's own class is called with the observation space and `model.params`, and tried in eval mode on one
    row of zeros and on two. It acts and learns in eval mode too: Dropout drops nothing, BatchNorm keeps its initial
    statistics.

    Raises:
        ModelError: it does not fit the observations, or the user's class is no torso or fails; its exception is the
            cause.
    """
    if ":" not in network.torso:
        if network.params:
            raise ModelError(f"model.params are for a network of your own; {network.torso} takes none")
        return Torso(space, network)
    try:
        found: Any = by_name.load(network.torso)
    except by_name.LoadError as error:
        raise ModelError(f"model.torso {error}") from error
    if not (inspect.isclass(found) and issubclass(found, nn.Module)):
        raise ModelError(f"model.torso {network.torso}: must be a class derived from torch.nn.Module")
    try:
        torso: nn.Module = found(space, **network.params)
        features = getattr(torso, "features", None)
    except Exception as error:  # a constructor may fail in any way
        raise ModelError(
            f"model.torso {network.torso}: making it raised {type(error).__name__}: {error}; "
            "it is called with the space and model.params"
        ) from error
    if "_modules" not in vars(torso):
        raise ModelError(f"model.torso {network.torso}: its __init__ must call super().__init__()")
    if not isinstance(features, int) or features < 1:
        raise ModelError(f"model.torso {network.torso}: needs an attribute `features`, the width of its output")
    for rows, seen in (1, "one observation"), (2, "two observations"):
        tells = f"model.torso {network.torso}: a pass on {seen} of zeros"
        try:
            tried = _on_zeros(torso, space, rows)
        except Exception as error:  # so may a pass
            raise ModelError(f"{tells} raised {type(error).__name__}: {error}") from error
        fault = _features_fault(tried, rows, features)
        if fault is not None:
            raise ModelError(f"{tells} must give finite float32 [{rows}, {features}] ({rows}, `features`), got {fault}")
    return torso


def hold_still(net: nn.Module) -> None:
    """Put a network into eval mode, in which it acts and learns: Dropout, BatchNorm and the like are fixed functions
    then, so that the learner computes the same probabilities that the actor recorded.

    torch's own recurrent layers without dropout stay in train mode, which only lets cuDNN compute their backward: it
    refuses to in eval mode.
    """
    net.eval()
    for module in net.modules():
        if isinstance(module, nn.RNNBase) and module.dropout == 0:
            module.train()


def _on_zeros(torso: nn.Module, space: Space, rows: int) -> Any:
    """Features of observations of zeros, in eval mode, in which a torso acts and learns (`hold_still`). The random
    state and the torso's own mode stay as they are."""
    zeros = {}
    for name, leaf in leaves(space, "obs"):
        dtype, shape = leaf_array(leaf)
        zeros[name] = torch.zeros((rows, *shape), dtype=getattr(torch, dtype))
    modes = {module: module.training for module in torso.modules()}
    torso.eval()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        tried = torso(zeros)
    for module, training in modes.items():
        module.training = training
    return tried


def _features_fault(tried: Any, rows: int, features: int) -> str | None:
    """Fault in the result of a trial pass, in words; None without one."""
    if not isinstance(tried, Tensor):
        return f"a {type(tried).__name__}"
    if tried.dtype != torch.float32 or tried.shape != (rows, features):
        return f"{str(tried.dtype).removeprefix('torch.')} {list(tried.shape)}"
    return None if tried.isfinite().all() else "numbers that are not finite"
