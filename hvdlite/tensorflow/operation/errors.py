"""Errors for users of TensorFlow.

In eager execution an error is of hvdlite's class and of one of `tf.errors`, so users can catch either. A graph fails
with the class of `tf.errors` and the text; `last_error` then returns the object itself.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import tensorflow as tf

from hvdlite import errors
from hvdlite.compat import stands_for_horovod
from hvdlite.errors import HorovodInternalError, HvdError
from hvdlite.session import is_initialized
from hvdlite.training.explanations import explained


class _OfTensorFlow(Exception):
    """The first base of an error of both classes."""

    def __init__(self, *arguments: Any) -> None:
        """Takes the arguments of hvdlite's class, or TensorFlow's four.

        Keras uses the four to make an error with a longer text from the one that it handles, whose attributes are kept.
        """
        if len(arguments) != 4:
            super().__init__(*arguments)
            return
        text, handled = arguments[2], sys.exc_info()[1]
        Exception.__init__(self, text)
        if type(handled) is type(self):
            self.__dict__.update(handled.__dict__)
        self.__dict__.update(_of_tensorflow(text, arguments[3]))


class Mismatch(_OfTensorFlow, errors.Mismatch, tf.errors.InvalidArgumentError):  # type: ignore[misc]
    """Ranks disagree about a tensor."""


class MismatchAsHorovods(_OfTensorFlow, errors.Mismatch, tf.errors.FailedPreconditionError):  # type: ignore[misc]
    """The same where hvdlite stands in for Horovod, which raises this class of TensorFlow."""


class WrongArgument(_OfTensorFlow, ValueError, tf.errors.InvalidArgumentError):  # type: ignore[misc]
    """An argument is wrong on this rank by itself."""

    def __reduce__(self) -> tuple[Any, ...]:
        """For `copy` and `pickle`, because TensorFlow's class takes three parameters, which are not kept."""
        return _wrong_argument, (str(self), self.__dict__)


class PeerLost(_OfTensorFlow, errors.PeerLost, tf.errors.AbortedError):  # type: ignore[misc]
    """A rank died or stopped answering."""


class ShutDown(_OfTensorFlow, errors.ShutDown, tf.errors.AbortedError):  # type: ignore[misc]
    """The session ended before the collective could run."""


class Stalled(_OfTensorFlow, errors.Stalled, tf.errors.AbortedError):  # type: ignore[misc]
    """Some ranks submitted a tensor and others did not within the allowed time."""


class NotInitialized(HorovodInternalError, tf.errors.FailedPreconditionError):  # type: ignore[misc]
    """There is no session: `init` was not called, or `shutdown` was."""

    def __init__(self, node_def: Any, op: Any, message: str, *_: Any) -> None:
        """Has the parameters by which AutoGraph recognizes that it can make a copy with a longer text."""
        super().__init__(message)
        self.__dict__.update(_of_tensorflow(message, tf.errors.FAILED_PRECONDITION))


class CollectiveFailed(_OfTensorFlow, HorovodInternalError, tf.errors.InternalError):  # type: ignore[misc]
    """A collective failed for another reason, which is in the text."""


def _wrong_argument(text: str, attributes: Mapping[str, Any]) -> WrongArgument:
    error = WrongArgument(text)
    error.__dict__.update(attributes)
    return error


_PAIRS: Final = {
    errors.Mismatch: Mismatch,
    errors.PeerLost: PeerLost,
    errors.ShutDown: ShutDown,
    errors.Stalled: Stalled,
}
_CODES: Final = (
    (tf.errors.InvalidArgumentError, tf.errors.INVALID_ARGUMENT),
    (tf.errors.AbortedError, tf.errors.ABORTED),
    (tf.errors.FailedPreconditionError, tf.errors.FAILED_PRECONDITION),
    (tf.errors.InternalError, tf.errors.INTERNAL),
    (ValueError, tf.errors.INVALID_ARGUMENT),
    (TypeError, tf.errors.INVALID_ARGUMENT),
    (MemoryError, tf.errors.RESOURCE_EXHAUSTED),
)

_last: BaseException | None = None


def in_both(error: Exception) -> Exception:
    """Converts an error of hvdlite, or a plain ValueError, to one that is TensorFlow's too. Returns others."""
    kind = _kind_of(error)
    if kind is None:
        return error
    text, arguments = str(error), error.args
    if isinstance(error, errors.Mismatch):
        text = explained(text)
        arguments = (text,)
    made: Exception = kind.__new__(kind, *arguments)
    made.__dict__.update(error.__dict__, **_of_tensorflow(text, code_of(made)))
    made.__cause__ = error.__cause__
    return made


@contextmanager
def raising_both() -> Iterator[None]:
    """Converts errors that are raised inside by `in_both`."""
    try:
        yield
    except (HvdError, ValueError) as error:
        raise in_both(error) from error.__cause__


def _kind_of(error: Exception) -> Any:
    if type(error) is ValueError:
        return WrongArgument
    if not isinstance(error, HvdError) or isinstance(error, tf.errors.OpError):
        return None
    kind = _PAIRS.get(type(error), CollectiveFailed if is_initialized() else NotInitialized)
    return MismatchAsHorovods if kind is Mismatch and stands_for_horovod() else kind


def _of_tensorflow(message: str, code: int) -> dict[str, Any]:
    """Returns the attributes that an error of TensorFlow has."""
    return dict(_node_def=None, _op=None, _message=message, _error_code=code, _experimental_payloads={})


def code_of(error: BaseException) -> int:
    """Returns the code in `tf.errors` with which a graph fails because of ``error``."""
    codes: list[int] = [code for kind, code in _CODES if isinstance(error, kind)]
    return (codes or [int(tf.errors.UNKNOWN)])[0]


def remember(error: BaseException) -> None:
    """Makes ``error`` the result of `last_error`."""
    global _last
    _last = error


def last_error() -> BaseException | None:
    """Returns the error of the last collective that failed inside a graph on this rank; None if there was none.

    An error that passes through a graph keeps only its text and a class of `tf.errors`. This is the original, with its
    attributes, such as the ``rank`` of a `PeerLost`.
    """
    return _last
