"""Collectives as operations of TensorFlow: called at once in eager execution, nodes of the graph inside `tf.function`.

A collective in a graph is three nodes. The first *starts* it and outputs a ticket. The second is TensorFlow's own
asynchronous `QueueDequeue`, which ends when the collective has ended: its output is the *news*. The third *finishes*:
it returns the results, or fails. None of them blocks a thread of TensorFlow. So no collective keeps another from
starting, in whatever order ranks execute their graphs, and however few threads there are. Only the starts keep the
order of the program.

The first and the last node are kernels of our own (`kernels.cc`, on TensorFlow's C API), or `tf.numpy_function` where
there is no compiler.
"""
