"""The collectives over tensors of TensorFlow, with their gradients, eager and inside `tf.function`."""
