"""`RayExecutor`: Horovod's way to run functions as ranks in a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hvdlite.ray.options import ExecutorSettings, refuse_elastic, workers

if TYPE_CHECKING:
    from hvdlite.ray.placement import Reserved
    from hvdlite.ray.workers import Crew


class RayExecutor:
    """Runs functions on ranks that are actors of a Ray cluster, from `start` to `shutdown`.

    The arguments are those of Horovod: ``settings`` of `create_settings` first, or only keywords. Either
    ``num_workers`` ranks are packed onto as few nodes as possible, or ``num_workers_per_host`` run on each of
    ``num_hosts`` nodes. Each has ``cpus_per_worker`` CPUs and, with ``use_gpu``, ``gpus_per_worker`` GPUs (1 if that is
    None).

    With ``use_current_placement_group``, ``num_workers`` ranks run in the placement group of the task or actor that
    calls `start`, if it is in one. The other arguments are those of elastic jobs, which hvdlite does not have; only
    values that keep the number of ranks are accepted. Raises ValueError for invalid arguments.
    """

    def __init__(
        self,
        settings: ExecutorSettings | None = None,
        num_workers: int | None = None,
        num_hosts: int | None = None,
        num_workers_per_host: int = 1,
        cpus_per_worker: float = 1,
        use_gpu: bool = False,
        gpus_per_worker: int | None = None,
        use_current_placement_group: bool = True,
        min_workers: int | None = None,
        max_workers: int | None = None,
        reset_limit: int | None = None,
        cooldown_range: Sequence[int] | None = None,
        elastic_timeout: int = 600,
        override_discovery: bool = True,
    ) -> None:
        refuse_elastic(locals(), num_workers)
        if settings is not None and not isinstance(settings, ExecutorSettings):
            raise ValueError(
                f"settings must come from RayExecutor.create_settings(), got {type(settings).__name__}; "
                "the number of ranks is num_workers="
            )
        self._settings = settings or ExecutorSettings()
        self._workers = workers(num_workers, num_hosts, num_workers_per_host, cpus_per_worker, use_gpu, gpus_per_worker)
        self._uses_current = use_current_placement_group
        self._reserved: Reserved | None = None
        self._crew: Crew | None = None

    @staticmethod
    def create_settings(
        timeout_s: float = 30,
        ssh_identity_file: str | None = None,
        ssh_str: str | None = None,
        placement_group_timeout_s: float = 100,
        nics: set[str] | None = None,
    ) -> ExecutorSettings:
        """Settings for the constructor.

        ``timeout_s`` is how long `init` waits for all ranks, and ``placement_group_timeout_s`` how long `start` waits
        for the cluster to have room. Ranks need no ssh, so those arguments have no effect. Raises ValueError for
        ``nics``, since ranks talk at the address by which Ray knows their node.
        """
        if nics:
            raise ValueError(
                "nics is not supported: ranks listen at the address by which Ray knows their node; "
                "start Ray there with --node-ip-address of the network that is to be used"
            )
        return ExecutorSettings(timeout_s, placement_group_timeout_s)

    def start(
        self,
        executable_cls: type | None = None,
        executable_args: Sequence[Any] | None = None,
        executable_kwargs: Mapping[str, Any] | None = None,
        extra_env_vars: Mapping[str, str] | None = None,
    ) -> None:
        """Starts the actors, with ``extra_env_vars`` in their environment.

        Each rank makes an ``executable_cls(*executable_args, **executable_kwargs)``, which may call `init`.

        Raises LaunchError if the cluster has no room for them, `FunctionFailed` if that class fails, and ValueError if
        they have started already.
        """
        if self._crew is not None:
            raise ValueError("this RayExecutor has started already; call shutdown() first")
        try:
            import ray  # noqa: F401 - here a failure gets a helpful message
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError("hvdlite.ray needs Ray; pip install 'hvdlite[ray]'", name=error.name) from error
        from hvdlite.ray.placement import reserve
        from hvdlite.ray.workers import START_S, Crew

        environment = {name: str(value) for name, value in (extra_env_vars or {}).items()}
        if self._settings.timeout_s is not None:
            environment.setdefault("HVDLITE_START_TIMEOUT", str(self._settings.timeout_s))
        room_s = self._settings.placement_group_timeout_s
        self._reserved = reserve(self._workers, self._uses_current, room_s)
        try:
            start_s = START_S if self._reserved.is_own else room_s
            self._crew = Crew(self._workers, self._reserved, start_s, environment)
            if executable_cls is not None:
                made = executable_cls, tuple(executable_args or ()), dict(executable_kwargs or {})
                self._crew.call("make", made)
        except BaseException:
            self.shutdown()
            raise

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        callbacks: Sequence[Any] | None = None,
    ) -> list[Any]:
        """Calls ``fn(*args, **kwargs)`` on every rank, and returns the results by rank.

        Raises `FunctionFailed` with the traceback of the rank that failed first, or `WorkerFailed` if its process died.
        The other ranks have then left the call as well. ``callbacks``, of Horovod's logger, must be empty.
        """
        _refuse(callbacks)
        return self._started().call("run", (fn, tuple(args or ()), dict(kwargs or {})))

    def run_remote(
        self, fn: Callable[..., Any], args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """As `run`, but returns a reference for each rank at once; `ray.get` waits for the results.

        The call begins when earlier ones have ended. `ray.get` raises `FunctionFailed`, or Ray's own error if the
        process of a rank died.
        """
        return self._started().submit("value", (fn, tuple(args or ()), dict(kwargs or {})))

    def execute(self, fn: Callable[[Any], Any], callbacks: Sequence[Any] | None = None) -> list[Any]:
        """As `run`, for ``fn(executable)`` with each rank's object of ``executable_cls``, or None without one."""
        _refuse(callbacks)
        return self._started().call("execute", fn)

    def execute_single(self, fn: Callable[[Any], Any]) -> Any:
        """As `execute`, on rank 0 alone; returns its result."""
        return self._started().call_first("execute", fn)

    def shutdown(self) -> None:
        """Ends the actors, and whatever they do. Does nothing if there are none."""
        crew, self._crew = self._crew, None
        reserved, self._reserved = self._reserved, None
        if crew is not None:
            crew.end()
        if reserved is not None:
            reserved.release()

    def _started(self) -> Crew:
        if self._crew is None:
            raise ValueError("this RayExecutor has no actors; call start() first")
        return self._crew


def _refuse(callbacks: Sequence[Any] | None) -> None:
    if callbacks:
        raise ValueError(
            "callbacks are not supported; let the function send what it logs through a ray.util.queue.Queue"
        )
