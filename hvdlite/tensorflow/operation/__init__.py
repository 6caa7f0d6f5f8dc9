"""Collectives as operations of TensorFlow: called at once in eager execution, nodes of the graph inside `tf.function`.

A collective in a graph is three nodes: one *starts* it and outputs a ticket, one is TensorFlow's own asynchronous
`QueueDequeue`, which ends when there is news of that ticket, and one *finishes*: it hands out the results, or fails.
None of them makes a thread of TensorFlow wait, so whatever the order in which ranks execute their graphs, and however
few threads there are, no collective keeps another one from starting. Only the starts keep the order of the program.

The first and the last node are kernels of our own (`kernels.cc`, on TensorFlow's C API), or `tf.numpy_function` where
there is no compiler.
"""
