"""TensorFlow's own data parallelism, `tf.distribute.MultiWorkerMirroredStrategy`, among the ranks of the job.

It finds its peers by ``TF_CONFIG``, which hvdrun never sets, since TensorFlow acts on it wherever it finds it.
"""

from __future__ import annotations

import json
import os
from typing import Any

import tensorflow as tf

from hvdlite import allgather_object, rank
from hvdlite.errors import HvdError
from hvdlite.launcher.agent.answers import free_port
from hvdlite.settings import Settings

_TIMEOUT_S = 60.0


def open_strategy() -> Any:
    """Connects the strategy to its peers, by gRPC. Raises HvdError if that fails.

    It has to come before whatever makes TensorFlow choose its devices, such as the first tensor.
    """
    communication = tf.distribute.experimental.CommunicationOptions(
        timeout_seconds=_TIMEOUT_S, implementation=tf.distribute.experimental.CommunicationImplementation.RING
    )
    place = f"{Settings.read().address or '127.0.0.1'}:{free_port({'address': '0.0.0.0', 'ports': None})}"
    cluster = {"worker": allgather_object(place)}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": rank()}})
    try:
        return tf.distribute.MultiWorkerMirroredStrategy(communication_options=communication)
    except (RuntimeError, tf.errors.OpError) as error:
        raise HvdError(f"tf.distribute's strategy could not connect: {error}") from None
    finally:
        del os.environ["TF_CONFIG"]
