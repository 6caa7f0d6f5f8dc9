"""Errors of collectives: in eager execution of both classes, in a graph of TensorFlow's with hvdlite's sentence."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import tensorflow as tf

import hvdlite.tensorflow as hvd
from hvdlite.errors import DuplicateName, PeerLost
from hvdlite.tensorflow.operation import errors, numpy_functions, running
from hvdlite.tensorflow.operation.errors import in_both
from tests.harness.scenarios import Report, Scenarios
from tests.tensorflow.ways import ALL_WAYS, GRAPHS, WAYS, by_numpy, compiled, eagerly, in_session, through

scenario = Scenarios(ranks=[2, 3])

IN_A_DATASET = r"cannot run inside tf\.data.*call it in the training step"


def raised(way: Any, function: Callable[..., Any], *arguments: Any) -> Exception:
    """What the call raises."""
    try:
        way(function, *arguments)
    except Exception as error:
        return error
    raise AssertionError(f"nothing was raised {way.__name__}")


def both_classes_eagerly_and_one_in_graphs(
    ours: type, of_tensorflow: type, sentence: str, function: Callable[..., Any], *arguments: Any
) -> None:
    error = raised(eagerly, function, *arguments)
    assert isinstance(error, ours)
    assert isinstance(error, of_tensorflow)
    assert sentence in str(error)
    assert isinstance(error, tf.errors.OpError)
    assert error.message == str(error)
    for way in GRAPHS:
        error = raised(way, function, *arguments)
        assert isinstance(error, of_tensorflow), error
        assert str(error).count(sentence) == 1, str(error)
        assert "Traceback" not in str(error)
        found = hvd.last_error()
        assert isinstance(found, ours)
        assert isinstance(found, of_tensorflow)
        assert sentence in str(found)


@scenario
def other_shapes_dtypes_operations_and_roots() -> None:
    mine = hvd.rank() == 1
    pairs = [
        ("shape", lambda: hvd.allreduce(tf.ones([2 + mine]), name="m")),
        ("dtype", lambda: hvd.allreduce(tf.ones([2], tf.float64 if mine else tf.float32), name="m")),
        ("operation", lambda: hvd.broadcast(tf.ones(2), 0, name="m") if mine else hvd.allgather(tf.ones(2), name="m")),
        ("root rank", lambda: hvd.broadcast(tf.ones(2), root_rank=int(mine), name="m")),
    ]
    for what, function in pairs:
        sentence = f"ranks disagree about the {what} of tensor 'm'"
        both_classes_eagerly_and_one_in_graphs(hvd.Mismatch, tf.errors.InvalidArgumentError, sentence, function)


@scenario
def the_class_is_horovods_where_hvdlite_stands_in_for_it() -> None:
    with mock.patch.object(errors, "stands_for_horovod", return_value=True):
        for way in ALL_WAYS:
            error = raised(way, lambda: hvd.allreduce(tf.ones([2 + hvd.rank()]), name="uneven"))
            kind = tf.errors.InvalidArgumentError if way is in_session else tf.errors.FailedPreconditionError
            assert isinstance(error, kind), (way, error)
            assert "ranks disagree about the shape of tensor 'uneven'" in str(error)
            assert isinstance(error if way is eagerly else hvd.last_error(), hvd.Mismatch)


@scenario
def a_gradient_that_is_missing_on_one_rank() -> None:
    weights = [tf.Variable(1.0, name="first"), tf.Variable([2.0, 3.0], name="second"), tf.Variable(4.0, name="third")]

    def gradients() -> Any:
        with tf.GradientTape() as tape:
            loss = weights[0] * (3.0 if hvd.rank() == 1 else tf.reduce_sum(weights[1]))
        return [each for each in hvd.DistributedGradientTape(tape).gradient(loss, weights) if each is not None]

    others = "rank 0 has [2]; rank 1" if hvd.size() == 2 else "ranks 0, 2 have [2]; rank 1"
    sentence = (
        f"[1]': {others} has [0]. Submit the same on every rank. "
        "That is the gradient of second:0; where it has the shape [0], it is None."
    )
    both_classes_eagerly_and_one_in_graphs(hvd.Mismatch, tf.errors.InvalidArgumentError, sentence, gradients)


@scenario
def gradients_that_are_rows_on_one_rank_and_missing_or_whole_on_another() -> None:
    table, bias = tf.Variable(tf.ones([3, 2])), tf.Variable(1.0)
    for other in (lambda: bias * 2.0, lambda: bias * tf.reduce_sum(table)):

        def gradients(other: Callable[[], Any] = other) -> Any:
            with tf.GradientTape() as tape:
                loss = other() if hvd.rank() == 1 else bias * tf.reduce_sum(tf.gather(table, [1]))
            found = hvd.DistributedGradientTape(tape).gradient(loss, [table, bias])
            return [tf.convert_to_tensor(each) for each in found if each is not None]

        sentence = "ranks disagree about the number of tensors in group 'tape."
        both_classes_eagerly_and_one_in_graphs(hvd.Mismatch, tf.errors.InvalidArgumentError, sentence, gradients)


@scenario
def tensors_that_are_rows_on_one_rank_and_whole_on_another() -> None:
    whole = tf.ones([3, 2])
    rows = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([1]), tf.constant([3, 2]))

    def reduced() -> Any:
        found = hvd.grouped_allreduce([rows, whole if hvd.rank() == 1 else rows], op=hvd.Sum, name="rows")
        return [tf.convert_to_tensor(each) for each in found]

    sentence = "ranks disagree about the number of tensors in group 'rows'"
    both_classes_eagerly_and_one_in_graphs(hvd.Mismatch, tf.errors.InvalidArgumentError, sentence, reduced)


@scenario
def keras_adds_to_the_text_of_an_error_that_passes_through_a_layer() -> None:
    class Summed(tf.keras.layers.Layer):  # type: ignore[misc]
        def call(self, inputs: Any) -> Any:
            return hvd.allreduce(inputs, op=hvd.Sum, name="layer")

    sentence = r"(?s)calling Summed\.call.*ranks disagree about the shape of tensor 'layer'.*Arguments received"
    with pytest.raises(hvd.Mismatch, match=sentence) as raised:
        Summed()(tf.ones([2 + (hvd.rank() == 1)]))
    assert isinstance(raised.value, tf.errors.InvalidArgumentError)
    assert raised.value.message == str(raised.value)
    try:
        raise in_both(PeerLost(1, "node", "it was killed"))
    except tf.errors.AbortedError as error:
        longer = error.__class__(error.node_def, error.op, f"{error.message} And more.", error.error_code)
    assert isinstance(longer, hvd.PeerLost)
    assert str(longer).endswith("And more.")
    assert (longer.rank, longer.host, longer.cause) == (1, "node", "it was killed")


@scenario
def a_gradient_that_is_missing_everywhere() -> None:
    weights = [tf.Variable(1.0), tf.Variable(2.0), tf.Variable(7)]

    def gradients() -> Any:
        with tf.GradientTape() as tape:
            loss = weights[0] * 3.0
        first, *missing = hvd.DistributedGradientTape(tape).gradient(loss, weights)
        assert missing == [None, None]
        return first

    for way in WAYS:
        assert float(way(gradients)) == 3.0


@scenario
def a_rank_in_a_graph_and_one_outside_hear_the_same() -> None:
    for graph in GRAPHS:
        way = graph if hvd.rank() == 1 else eagerly
        error = raised(way, lambda: hvd.allreduce(tf.ones([2 + hvd.rank()]), name="uneven"))
        assert isinstance(error, tf.errors.InvalidArgumentError)
        assert "ranks disagree about the shape of tensor 'uneven'" in str(error)


@scenario
def arguments_that_are_wrong_on_a_rank_by_itself() -> None:
    other = hvd.add_process_set([1])
    for way in ALL_WAYS:
        for sentence, function in [
            ("alltoall without splits divides rows evenly", lambda: hvd.alltoall(tf.ones(hvd.size() + 1))),
            ("root_rank 77 is not a rank of this job", lambda: hvd.broadcast(tf.ones(2), 77)),
            ("needs a tensor with at least one dimension", lambda: hvd.allgather(tf.ones(()))),
            ("dtype string is not supported", lambda: hvd.allgather(tf.constant(["text"]))),
            ("op 17 is not supported", lambda: hvd.allreduce(tf.ones(2), op=17)),
            ("is not registered", lambda: hvd.allreduce(tf.ones(2), process_set=unregistered([1]))),
            ("only members may use it", lambda: hvd.allreduce(tf.ones(2), process_set=other)),
        ]:
            if sentence == "only members may use it" and hvd.rank() == 1:
                continue
            error = raised(way, function)
            assert isinstance(error, (ValueError, tf.errors.InvalidArgumentError)), (way, error)
            assert sentence in str(error), (way, str(error))
            if way is eagerly:
                for each in (error, copy.copy(error), pickle.loads(pickle.dumps(error))):
                    assert isinstance(each, ValueError)
                    assert isinstance(each, tf.errors.InvalidArgumentError)
                    assert each.message == str(each) == str(error)
    hvd.remove_process_set(other)


def unregistered(ranks: list[int]) -> Any:
    """A set that a graph must not take for the one of the same ranks."""
    made = hvd.ProcessSet(ranks)
    made.process_set_id = 77
    return made


def test_a_name_in_flight_keeps_its_class() -> None:
    error = DuplicateName("x is in flight")
    assert in_both(error) is error


@scenario
def the_session_goes_on_after_them() -> None:
    for way in WAYS:
        assert float(way(lambda: hvd.allreduce(1.0, op=hvd.Sum))) == hvd.size()


@scenario
def errors_can_be_copied_and_pickled() -> None:
    error = raised(eagerly, lambda: hvd.allreduce(tf.ones([2 + hvd.rank()]), name="uneven"))
    for other in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert type(other) is type(error)
        assert str(other) == str(error)


@scenario
def a_function_that_xla_compiles_is_refused_while_it_is_traced() -> None:
    def inner(x: Any) -> Any:
        return hvd.allreduce(x)

    for choice in ("compiled", "numpy"):
        with through(choice):
            traced = tf.function(inner).get_concrete_function(tf.ones(2))
            for function in (inner, tf.function(inner), traced):
                with pytest.raises(ValueError, match=r"cannot be compiled by XLA.*pass jit_compile=False"):
                    tf.function(lambda x, function=function: function(x), jit_compile=True)(tf.ones(2))


@scenario
def a_dataset_refuses_collectives() -> None:
    def reduce(x: Any) -> Any:
        return hvd.allreduce(x, op=hvd.Sum)

    numbers = tf.data.Dataset.range(3)
    for build in (
        lambda: numbers.map(reduce),
        lambda: numbers.map(tf.function(reduce)),
        lambda: numbers.filter(lambda x: reduce(x) > 0),
        lambda: numbers.reduce(zero(), lambda total, x: total + reduce(x)),
        lambda: numbers.flat_map(lambda x: tf.data.Dataset.range(x).map(reduce)),
    ):
        with pytest.raises(ValueError, match=IN_A_DATASET):
            build()


@scenario
def a_dataset_refuses_functions_with_a_collective_that_were_traced_before() -> None:
    numbers = tf.data.Dataset.range(3)
    for choice in ("compiled", "numpy"):
        with through(choice):
            reduce, of_reduce, branch = traced_before()
        for function in (reduce, reduce.get_concrete_function(zero()), of_reduce, branch):
            calls = (
                lambda function=function: numbers.map(function),
                lambda function=function: numbers.filter(lambda x: function(x) > 0),
                lambda function=function: numbers.reduce(zero(), lambda total, x: total + function(x)),
                lambda function=function: numbers.map(lambda x: tf.cond(x > 1, lambda: function(x), zero)),
                lambda function=function: numbers.map(lambda x: tf.while_loop(lambda x: x < 9, function, [x])),
                lambda function=function: numbers.flat_map(lambda x: tf.data.Dataset.range(x).map(function)),
                tf.function(lambda function=function: tf.data.experimental.get_single_element(numbers.map(function))),
            )
            for call in calls:
                with pytest.raises(ValueError, match=IN_A_DATASET):
                    call()
            assert int(function(zero() + 1)) == hvd.size()


def traced_before() -> list[Any]:
    """Functions of one number, each with a collective: its own, in a function that it calls, and in a branch."""
    reduce = tf.function(lambda x: hvd.allreduce(x, op=hvd.Sum))
    of_reduce = tf.function(lambda x: reduce(x))
    branch = tf.function(lambda x: tf.cond(x > 0, lambda: reduce(x), lambda: x))
    functions = [reduce, of_reduce, branch]
    for function in functions:
        assert int(function(zero() + 1)) == hvd.size()
    return functions


def zero() -> Any:
    return tf.constant(0, tf.int64)


@scenario
def a_dataset_takes_other_functions_with_state() -> None:
    """While a function with a collective calls them, too."""

    @tf.function
    def count(x: Any) -> Any:
        return counter.assign_add(x)

    @tf.function
    def reduce(x: Any) -> Any:
        return hvd.allreduce(count(x), op=hvd.Sum)

    counter = tf.Variable(0, dtype=tf.int64)
    assert int(reduce(zero() + 1)) == hvd.size()
    assert [int(x) for x in tf.data.Dataset.range(3).map(count)] == [1, 2, 4]


@scenario
def the_last_step_of_a_loop_over_a_dataset_fails() -> None:
    """After another step TensorFlow may begin the next one before it ends the loop."""

    def loop() -> Any:
        total = 0.0
        for number in tf.data.Dataset.range(2):
            total += tf.reduce_sum(hvd.allreduce(tf.ones(2 + number * hvd.rank()), name="uneven step"))
        return total

    for way in GRAPHS:
        error = raised(way, loop)
        assert isinstance(error, tf.errors.InvalidArgumentError)
        assert "ranks disagree about the shape of tensor 'uneven step'" in str(error)
        assert isinstance(hvd.last_error(), hvd.Mismatch)


@scenario
def what_is_vectorized_refuses_collectives() -> None:
    def reduce(x: Any) -> Any:
        return hvd.allreduce(x * x, name="vectorized")

    def derivative(use_pfor: bool) -> Any:
        x = tf.ones(3)
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = reduce(x)
        return tape.jacobian(y, x, experimental_use_pfor=use_pfor)

    sentence = r"cannot be vectorized; use tf\.map_fn.*experimental_use_pfor=False"
    for way in WAYS:
        for refused in (
            lambda: tf.vectorized_map(reduce, tf.ones((3, 2))),
            lambda: tf.vectorized_map(tf.function(reduce), tf.ones((3, 2))),
            lambda: derivative(True),
        ):
            with pytest.raises(RuntimeError, match=sentence):
                way(refused)
        assert way(lambda: tf.map_fn(reduce, tf.fill((3, 2), 2.0))).numpy().tolist() == [[4.0, 4.0]] * 3
        assert way(lambda: derivative(False)).numpy().tolist() == [[2.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 2.0]]


def test_errors(report: Report, name: str) -> None:
    assert report[name] == ""


def test_collectives_need_a_session() -> None:
    assert not hvd.is_initialized()
    variable = tf.Variable(1.0)
    for way in (eagerly, compiled, by_numpy):
        for function in (
            lambda: hvd.allreduce(1.0),
            hvd.barrier,
            lambda: hvd.broadcast_variables([variable], 0),
        ):
            error = raised(way, function)
            assert isinstance(error, tf.errors.OpError if way is by_numpy else tf.errors.FailedPreconditionError)
            assert isinstance(error if way is eagerly else hvd.last_error(), hvd.HorovodInternalError)
            assert "has not been initialized" in str(error)


def test_a_function_of_the_user_that_needs_a_session_fails_with_both_classes() -> None:
    """AutoGraph makes another error, with a longer text, of one that passes through a function it has converted."""

    @tf.function
    def step(x: Any) -> Any:
        return hvd.allreduce(x)

    assert not hvd.is_initialized()
    error = raised(eagerly, step, tf.ones(2))
    assert isinstance(error, tf.errors.FailedPreconditionError)
    assert isinstance(error, hvd.HorovodInternalError)
    assert "has not been initialized" in str(error)


@pytest.mark.parametrize("choice", ["compiled", "numpy"])
def test_a_graph_outlives_its_session(choice: str) -> None:
    hvd.init()
    with through(choice):
        function = tf.function(lambda: hvd.allreduce(3.0))
        assert float(function()) == 3.0
    hvd.shutdown()
    error = raised(eagerly, function)
    assert isinstance(error, tf.errors.FailedPreconditionError)
    assert str(error).count("has not been initialized") == 1
    assert isinstance(hvd.last_error(), hvd.HorovodInternalError)
    hvd.init()
    assert float(function()) == 3.0
    hvd.shutdown()


def test_a_tensorflow_that_hides_its_c_api_and_copies_arrays_reduces_and_says_what_failed() -> None:
    hvd.init()
    with mock.patch.object(numpy_functions, "failing", return_value=None):
        nodes = numpy_functions.NumpyFunctions()
    copies = mock.patch.object(numpy_functions, "_keeps_arrays", return_value=False)
    with copies, mock.patch.object(running, "route", return_value=nodes):
        function = tf.function(lambda: hvd.allreduce(3.0))
        assert float(function()) == 3.0
    hvd.shutdown()
    error = raised(eagerly, function)
    assert isinstance(error, tf.errors.UnknownError)
    assert "has not been initialized" in str(error)
    assert isinstance(hvd.last_error(), tf.errors.FailedPreconditionError)
