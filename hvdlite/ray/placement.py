"""Where the ranks run: bundles of a placement group, which is the caller's own or a new one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import ray
from ray.util import get_current_placement_group, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from hvdlite.errors import LaunchError
from hvdlite.hosted.placement import Node, by_node
from hvdlite.ray.options import Workers


class Reserved(NamedTuple):
    """A placement ``group``, and the bundle of each rank: -1 lets Ray choose one that has room."""

    group: Any
    bundles: list[int]
    is_own: bool

    def strategy(self, rank: int) -> PlacementGroupSchedulingStrategy:
        """How the actor of ``rank`` is scheduled."""
        return PlacementGroupSchedulingStrategy(self.group, self.bundles[rank], False)

    def release(self) -> None:
        """Gives the resources back if this process reserved them."""
        if self.is_own:
            remove_placement_group(self.group)


def reserve(workers: Workers, use_current: bool, timeout_s: float) -> Reserved:
    """Reserves resources for ``workers``; ranks of one node follow each other.

    Raises LaunchError if the cluster has no room within ``timeout_s``.
    """
    if use_current and not workers.spread and (current := get_current_placement_group()) is not None:
        return Reserved(current, [-1] * workers.count, is_own=False)
    bundles = workers.bundles
    group = placement_group(bundles, strategy="STRICT_SPREAD" if workers.spread else "PACK")
    reserved = Reserved(group, [], is_own=True)
    try:
        if not group.wait(timeout_s):
            raise LaunchError(_too_little(workers, timeout_s))
        nodes = placement_group_table(group)["bundles_to_node_id"]
        order = by_node([Node(nodes[index], "", "") for index in range(len(bundles))])
    except BaseException:
        reserved.release()
        raise
    return reserved._replace(bundles=[index for index in order for _ in range(workers.per_bundle)])


def _too_little(workers: Workers, timeout_s: float) -> str:
    number, bundle = len(workers.bundles), _resources(workers.bundles[0])
    asked = f"{number} hosts with {bundle} each" if workers.spread else f"{number} times {bundle}"
    nodes = [_resources(node["Resources"]) for node in ray.nodes() if node["Alive"]]
    return (
        f"Ray did not find room for {workers.count} ranks within {timeout_s:g} s: they need {asked}. The cluster has "
        f"{len(nodes)} node(s) with {'; '.join(nodes)}, of which {_resources(ray.available_resources())} are free. Add "
        "nodes, ask for less, or raise placement_group_timeout_s"
    )


def _resources(amounts: Mapping[str, float]) -> str:
    found = [f"{amounts.get(name, 0):g} {name}" for name in ("CPU", "GPU") if name == "CPU" or amounts.get(name)]
    return " and ".join(found)
