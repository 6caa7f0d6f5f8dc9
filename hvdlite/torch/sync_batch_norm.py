"""Batch normalization over the batches of all ranks, as if they were one.

Forward, each rank takes mean and variance of its own batch; one all-gather of these and of the counts gives everybody
the moments of the whole (Chan et al., "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances",
1979). With counts n, means m and variances v, and N = Σ n, the mean is M = Σ n m / N and the variance is
Σ n (v + (m - M)²) / N. Sums of squares would lose all digits of a variance that is small beside the mean.

Backward, with x̂ the normalized input, g its gradient and w the weight, the gradient of the input is
w / σ · (g - (Σ g + x̂ Σ g x̂) / N). The two sums over one rank are the gradients of its bias and weight, which stay as
they are; one all-reduce makes them the sums over all ranks for the gradient of the input.

All layers of so many features share the names of their collectives, which ranks then remember; ranks match them by
their order.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm

from hvdlite.ops import ProcessSet, Sum, abandon, global_process_set, synchronize
from hvdlite.ops.submit import in_order
from hvdlite.torch.collectives.tensors import collectives
from hvdlite.training.reduction import group_with_peers


class SyncBatchNorm(_BatchNorm):
    """`torch.nn.BatchNorm1d`, 2d and 3d over the batches of all ranks together, whose sizes may differ and be 0.

    In evaluation, with one rank, and on a rank outside ``process_set`` it works as torch's module, without
    communication. Takes tensors of 2 dimensions and more: batch, features, and others.
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

        New layers share parameters and running averages with the old ones, so optimizers that were made before keep
        them, and a layer in several places stays one layer. Layers of this class stay as they are. Hooks on a layer and
        the ``forward`` of a user's subclass are not carried over.
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
        if not self.training or (group := group_with_peers(self.process_set)) is None:
            return super().forward(input)
        with torch.no_grad():
            name = in_order(group, f"sync_batch_norm.{self.num_features}")
            whole = _moments_of_all(input, name, self.process_set)
            if whole.values <= 1:
                raise ValueError(f"expected more than 1 value per feature on all ranks together, got {whole.values}")
            self._track(whole)
        normalized: torch.Tensor = _Normalize.apply(  # type: ignore[no-untyped-call]
            input, self.weight, self.bias, whole, self.eps, self.process_set
        )
        return normalized

    def _track(self, whole: _Moments) -> None:
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


class _Moments(NamedTuple):
    """The moments of each feature over its ``values`` on all ranks, and the ``name`` of their collective."""

    mean: torch.Tensor
    variance: torch.Tensor
    values: int
    name: str


def _moments_of_all(input: torch.Tensor, name: str, process_set: ProcessSet) -> _Moments:
    """Computes the moments of the inputs of all ranks, which may have different numbers of values, or none."""
    features = input.shape[1]
    count = input.numel() // features
    wide = _widened(input)
    if count > 0:  # as torch's own layer does; on CPUs `var_mean` takes more than twice as long
        moments = torch.batch_norm_update_stats(wide, None, None, 0.0)
        own = torch.cat((*moments, wide.new_full((1,), count, dtype=torch.float64)))
    else:
        own = torch.zeros(2 * features + 1, dtype=torch.float64, device=input.device)
    # Reading the sum of the counts from a GPU would make the host wait for all the GPU's work.
    counted = None
    if own.is_cuda:
        count_on_host = torch.tensor([count], device="cpu")
        counted = collectives.allgather_async(count_on_host, f"{name}.count", process_set)
    try:
        gathered = collectives.allgather(own.unsqueeze(0), name, process_set)
    except BaseException:
        if counted is not None:
            abandon(counted)
        raise
    table: Any = gathered if gathered.is_cuda else gathered.numpy()  # which takes a quarter of the time
    means, variances, counts = table[:, :features], table[:, features:-1], table[:, -1:]
    total = counts.sum()
    shares = counts / (total + (total == 0))
    mean = (shares * means).sum(0)
    variance = (shares * (variances + (means - mean) ** 2)).sum(0)
    values = int(total if counted is None else synchronize(counted).sum())
    return _Moments(torch.as_tensor(mean, dtype=wide.dtype), torch.as_tensor(variance, dtype=wide.dtype), values, name)


def _widened(tensor: torch.Tensor) -> torch.Tensor:
    """Converts ``tensor`` to the dtype in which its sums are formed."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


class _Normalize(torch.autograd.Function):
    """Normalizes with given moments. Backward accounts for their dependence on the input of all ranks."""

    @staticmethod
    def forward(
        context: Any,
        input: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        whole: _Moments,
        eps: float,
        process_set: ProcessSet,
    ) -> torch.Tensor:
        context.save_for_backward(input, weight, bias)
        context.whole, context.eps, context.process_set = whole, eps, process_set
        wide = whole.mean.dtype
        scale = None if weight is None else weight.to(wide)
        shift = None if bias is None else bias.to(wide)
        return torch.nn.functional.batch_norm(input, whole.mean, whole.variance, scale, shift, eps=eps)

    @staticmethod
    @once_differentiable
    def backward(context: Any, *gradients: torch.Tensor) -> Any:
        input, weight, bias = context.saved_tensors
        whole, eps = context.whole, context.eps
        wide = _widened(input)
        gradient = gradients[0].to(wide.dtype)
        inverse = (whole.variance + eps).rsqrt()
        from_scale, from_shift = _sums(gradient, wide, whole, inverse, eps)
        from_input = None
        if context.needs_input_grad[0]:
            sums = torch.cat((from_shift, from_scale))
            name = f"{whole.name}.backward"
            collectives.allreduce_(sums, name=name, op=Sum, process_set=context.process_set)
            slope = inverse if weight is None else inverse * weight.to(wide.dtype)
            shift, scale = (sums / -whole.values).view(2, -1) * slope
            from_input = torch.nn.functional.batch_norm(wide, whole.mean, whole.variance, scale, shift, eps=eps)
            from_input.addcmul_(gradient, slope.view(-1, *[1] * (input.dim() - 2)))
            from_input = from_input.to(input.dtype)
        return (
            from_input,
            from_scale.to(weight.dtype) if context.needs_input_grad[1] else None,
            from_shift.to(bias.dtype) if context.needs_input_grad[2] else None,
            *[None] * 3,
        )


def _sums(
    gradient: torch.Tensor, input: torch.Tensor, whole: _Moments, inverse: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the gradients of weight and bias on this rank. ``inverse`` is that of the standard deviations."""
    if input.numel() == 0:  # torch divides by the number of elements here
        return torch.zeros_like(inverse), torch.zeros_like(inverse)
    # CUDA takes the moments from the second pair if the input has two dimensions or its channels are last.
    mean, variance = whole.mean, whole.variance
    _, from_scale, from_shift = torch.ops.aten.native_batch_norm_backward(
        gradient, input, None, mean, variance, mean, inverse, False, eps, [False, True, True]
    )
    return from_scale, from_shift


convert_sync_batchnorm = SyncBatchNorm.convert_sync_batchnorm
