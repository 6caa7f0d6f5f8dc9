"""The fakes, once for all tests of the folder, and what those tests must have given back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gpu.fake import Fakes, built, missing
from tests.gpu.machine.place import IS_MACHINE
from tests.gpu.staging import One
from tests.harness.forkserver import ForkServer


@pytest.fixture(scope="session")
def loaded_fakes(pytestconfig: pytest.Config) -> Fakes:
    if reason := missing():
        pytest.skip(reason)
    assert pytestconfig.cache is not None
    fakes = Fakes(built(pytestconfig.cache.mkdir("fakes")))
    fakes.cuda.cuInit(0)  # maps the memory of its GPUs, which stays
    return fakes


@pytest.fixture(autouse=True)
def _ranks_may_share_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """There are two GPUs, and often more ranks."""
    monkeypatch.setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1")


@pytest.fixture
def fakes(loaded_fakes: Fakes) -> Iterator[Fakes]:
    """The fakes in this process; what they give out, but arrays of `Fakes`, must come back."""
    loaded_fakes.forget()
    loaded_fakes.settle()
    before = loaded_fakes.held()
    yield loaded_fakes
    after = loaded_fakes.held()
    kept = {"contexts", "streams", "events", "modules", "communicators"}
    assert {name: after[name] for name in kept} == {name: before[name] for name in kept}


@pytest.fixture(scope="session")
def fake_torch(loaded_fakes: Fakes, pytestconfig: pytest.Config) -> Path:
    """What gives PyTorch fake GPUs, see `tests.gpu.torch_fake.preload`."""
    from tests.gpu.torch_fake import building

    assert pytestconfig.cache is not None
    return building.built(pytestconfig.cache.mkdir("fakes"), loaded_fakes.folder)


@pytest.fixture(scope="session")
def torch_ranks(request: pytest.FixtureRequest) -> Iterator[ForkServer]:
    """A process that has a PyTorch with GPUs, of the machine or fakes, from which ranks are forked."""
    modules = ["hvdlite.torch", "pytest", "tests.harness.dynamo"]
    with pytest.MonkeyPatch.context() as patch:
        if not IS_MACHINE:
            modules.insert(0, "tests.gpu.torch_fake.preload")
            patch.setenv("FAKE_CUDA", str(request.getfixturevalue("loaded_fakes").folder))
            patch.setenv("FAKE_TORCH", str(request.getfixturevalue("fake_torch")))
        with ForkServer(*modules) as server:
            yield server


@pytest.fixture
def one(fakes: Fakes) -> Iterator[One]:
    made = One(fakes)
    yield made
    made.close()
