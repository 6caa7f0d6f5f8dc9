"""An optimizer of the user's class that takes the steps of the whole job.

The wrapped optimizer is of a subclass of the user's class, and has the same ``__dict__`` as the user's object. So
parameter groups, state and hooks are the same for both, also when a checkpoint is loaded into either.
"""

from __future__ import annotations

import weakref
from abc import abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import torch

from hvdlite.compat import stands_for_horovod
from hvdlite.torch.optimizer.names import ParamGroup, group_names, horovod_names

Closure = Callable[[], Any]
Front = TypeVar("Front", bound="DistributedStep")


class DistributedStep(torch.optim.Optimizer):
    """The base of front classes, which precede the user's class in the method resolution order."""

    _parameter_names: dict[torch.Tensor, str]  # as in Horovod, whose scripts read it
    _reducer: Any  # takes parameters with `watch`

    @property
    @abstractmethod
    def backward_passes_per_step(self) -> int:
        """Backward passes whose gradients are summed locally for one step."""

    @abstractmethod
    def set_backward_passes_per_step(self, passes: int) -> None:
        """Changes `backward_passes_per_step` between two steps. Raises ValueError unless it is positive."""

    @abstractmethod
    def synchronize(self) -> None:
        """Waits until the gradients are reduced."""

    @abstractmethod
    def skip_synchronize(self) -> AbstractContextManager[None]:
        """A context in which `step` does not synchronize, because `synchronize` was called before."""

    def add_param_group(self, param_group: ParamGroup) -> None:
        """Adds parameters, which are reduced from now on; all ranks add the same."""
        super().add_param_group(param_group)
        names = group_names(self.param_groups[-1], len(self.param_groups) - 1)
        self._parameter_names.update(horovod_names(names))
        for parameter, name in names.items():
            self._reducer.watch([(name, parameter)])

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            "a DistributedOptimizer cannot be copied or pickled: it has hooks on the parameters. Save and load its "
            "state_dict(), or wrap a copy of the optimizer that it was made from"
        )


def wrap(optimizer: torch.optim.Optimizer, front: type[Front], choices: Mapping[str, Any], **attributes: Any) -> Front:
    """Makes an optimizer of ``front`` and the class of ``optimizer`` that shares all attributes of ``optimizer``.

    ``choices`` are attributes of its class, because the user's optimizer may have attributes of these names.
    """
    user_class = type(optimizer)
    # Scripts recognize a wrapped optimizer by the name of its class or module.
    module = "horovod.torch.optimizer" if stands_for_horovod() else "hvdlite.torch.optimizer"
    namespace = {**choices, "__doc__": user_class.__doc__, "__module__": module}
    subclass = type(user_class.__name__, (front, user_class), namespace)
    wrapped: Front = object.__new__(subclass)
    shared = vars(optimizer)
    shared.pop("step", None)  # a scheduler's counter around the user's step, which would hide ours
    shared.update(attributes, _wrapper=weakref.ref(wrapped))
    wrapped.__dict__ = shared
    return wrapped


def positive_passes(passes: int) -> int:
    """Returns ``passes``. Raises ValueError unless it is positive."""
    if passes <= 0:
        raise ValueError(f"backward_passes_per_step must be positive, got {passes}")
    return passes
