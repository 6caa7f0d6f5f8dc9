"""The collectives, written once for all front ends, and every name that a front end needs from lower layers.

`Collectives` accesses tensors only through an `Adapter`, which returns the buffer of a tensor and makes empty tensors.
A front end makes an instance with its own adapter; `hvdlite.ops.arrays` has the instance for numpy.
"""

from hvdlite.groups.group import Group
from hvdlite.groups.over_store import exit_group, leave_group, open_over_store
from hvdlite.members.process_set import ProcessSet, global_process_set
from hvdlite.members.ranges import named as named_ranks
from hvdlite.negotiation.entry import Entry
from hvdlite.negotiation.handle import Handle
from hvdlite.negotiation.messages import Kind
from hvdlite.observe.loading import loading
from hvdlite.ops.adapter import Adapter, Compressor
from hvdlite.ops.collectives import Collectives
from hvdlite.ops.handles import GroupHandle, abandon, poll, synchronize, synchronize_all
from hvdlite.ops.meeting import barrier, join
from hvdlite.session import group_of
from hvdlite.tensors.buffer import Buffer, NotAnArray, address_of, of_array
from hvdlite.tensors.device import CPU, Device
from hvdlite.tensors.dtypes import (
    OP_NAMES,
    Adasum,
    Average,
    DType,
    ElementType,
    Max,
    Min,
    Opaque,
    Product,
    Sum,
    added_as,
    element_type,
)
from hvdlite.tensors.streams import Synced

__all__ = [
    "CPU",
    "OP_NAMES",
    "Adapter",
    "Adasum",
    "Average",
    "Buffer",
    "Collectives",
    "Compressor",
    "DType",
    "Device",
    "ElementType",
    "Entry",
    "Group",
    "GroupHandle",
    "Handle",
    "Kind",
    "Max",
    "Min",
    "NotAnArray",
    "Opaque",
    "ProcessSet",
    "Product",
    "Sum",
    "Synced",
    "abandon",
    "added_as",
    "address_of",
    "barrier",
    "element_type",
    "exit_group",
    "global_process_set",
    "group_of",
    "join",
    "leave_group",
    "loading",
    "named_ranks",
    "of_array",
    "open_over_store",
    "poll",
    "synchronize",
    "synchronize_all",
]
