"""Batch normalization over the batches of all ranks, as if they were one."""

from __future__ import annotations

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from hvdlite.ops import ProcessSet, global_process_set
from hvdlite.torch.normalization import Moments, Normalize, moments_of_all
from hvdlite.training.peers import group_with_peers


class SyncBatchNorm(_BatchNorm):
    """`torch.nn.BatchNorm1d`, 2d and 3d over the batches of all ranks together, whose sizes may differ and be 0.

    In evaluation, with one rank, and on a rank outside ``process_set`` it is the module of torch, without
    communication. Takes tensors of 2 dimensions and more: batch, features, and the rest.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats)
        self.process_set = process_set

    @classmethod
    def convert_sync_batchnorm(
        cls, module: torch.nn.Module, process_set: ProcessSet = global_process_set
    ) -> torch.nn.Module:
        """Replaces every batch normalization in ``module``. Returns ``module``, or its replacement if it is one itself.

        Parameters and running averages are shared with those that they replace, so optimizers that were made before
        keep them, and a layer that is in several places stays one layer. Layers of this class stay as they are. Hooks
        on a layer, and the forward of a class that the user derived from it, are not carried over.
        """
        return cls._converted(module, process_set, {})

    @classmethod
    def _converted(
        cls, module: torch.nn.Module, process_set: ProcessSet, done: dict[torch.nn.Module, torch.nn.Module]
    ) -> torch.nn.Module:
        if module in done:
            return done[module]
        is_other = isinstance(module, _BatchNorm) and not isinstance(module, cls)
        done[module] = cls._like(module, process_set) if is_other else module  # type: ignore[arg-type]
        for name, child in list(module._modules.items()):
            if child is not None:
                module.register_module(name, cls._converted(child, process_set, done))
        return done[module]

    @classmethod
    def _like(cls, layer: _BatchNorm, process_set: ProcessSet) -> SyncBatchNorm:
        converted = cls(
            layer.num_features, layer.eps, layer.momentum, layer.affine, layer.track_running_stats, process_set
        )
        converted.weight, converted.bias = layer.weight, layer.bias
        converted.running_mean, converted.running_var = layer.running_mean, layer.running_var
        converted.num_batches_tracked = layer.num_batches_tracked
        return converted.train(layer.training)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Normalizes ``input``. Raises ValueError if all ranks together have fewer than two values a feature."""
        self._check_input_dim(input)
        if not self.training or group_with_peers(self.process_set) is None:
            return super().forward(input)
        with torch.no_grad():
            whole = moments_of_all(input, self.process_set)
            if whole.values <= 1:
                raise ValueError(f"expected more than 1 value per feature on all ranks together, got {whole.values}")
            self._track(whole)
        normalized: torch.Tensor = Normalize.apply(  # type: ignore[no-untyped-call]
            input, self.weight, self.bias, whole, self.eps, self.process_set
        )
        return normalized

    def _track(self, whole: Moments) -> None:
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        self.num_batches_tracked.add_(1)
        share = 1 / self.num_batches_tracked.item() if self.momentum is None else self.momentum
        unbiased = whole.variance * (whole.values / (whole.values - 1))
        self.running_mean.lerp_(whole.mean.to(self.running_mean.dtype), share)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), share)

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected an input of at least 2 dimensions, got {input.dim()}")
        if input.shape[1] != self.num_features:
            raise ValueError(f"expected {self.num_features} features in dimension 1, got {input.shape[1]}")


convert_sync_batchnorm = SyncBatchNorm.convert_sync_batchnorm
