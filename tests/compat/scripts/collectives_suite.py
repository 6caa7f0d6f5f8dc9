"""A suite in the style of Horovod's own: every rank runs it, by itself or under ``python -m pytest``."""

# ruff: noqa: PT009, PT027 - the suites that it stands for use unittest

import itertools
import time
import unittest

import horovod.torch as hvd
import numpy as np
import torch
from horovod.common.exceptions import HorovodInternalError
from horovod.common.util import gloo_built, gpu_available, mpi_built
from horovod.torch.mpi_ops import is_homogeneous

DTYPES = [torch.int32, torch.int64, torch.float16, torch.float32, torch.float64]


def setUpModule():
    hvd.init(process_sets="dynamic")


def tearDownModule():
    hvd.shutdown()


class CollectiveTests(unittest.TestCase):
    def setUp(self):
        self.rank, self.size = hvd.rank(), hvd.size()

    def test_basics(self):
        self.assertTrue(hvd.is_initialized())
        self.assertTrue(is_homogeneous())
        self.assertTrue(gloo_built() or mpi_built())
        self.assertIn(gpu_available("torch"), (True, False))
        self.assertEqual((hvd.local_rank(), hvd.local_size()), (self.rank, self.size))
        self.assertEqual((hvd.cross_rank(), hvd.cross_size()), (0, 1))
        self.assertEqual(hvd.global_process_set.size(), self.size)

    def test_allreduce(self):
        for dtype, dim in itertools.product(DTYPES, [1, 2, 3]):
            torch.manual_seed(1234)
            tensor = torch.empty(*([17] * dim)).random_(-100, 100).to(dtype)
            summed = hvd.allreduce(tensor, average=False)
            self.assertTrue(torch.allclose(summed, tensor * self.size))
            averaged = hvd.allreduce(tensor, op=hvd.Average)
            self.assertTrue(torch.allclose(averaged.float(), tensor.float()))

    def test_allreduce_async_fused(self):
        tests = []
        for dtype, number in itertools.product(DTYPES, range(10)):
            tensor = torch.full((number + 1, 3), self.rank + 1).to(dtype)
            tests.append((hvd.allreduce_async(tensor, op=hvd.Sum), tensor))
        expected = sum(range(1, self.size + 1))
        while not all(hvd.poll(handle) for handle, _ in tests):
            time.sleep(0.001)
        for handle, tensor in tests:
            self.assertTrue((hvd.synchronize(handle) == expected).all().item())
            self.assertTrue((tensor == self.rank + 1).all().item())

    def test_allreduce_inplace_and_scaled(self):
        tensor = torch.ones(5) * (self.rank + 1)
        same = hvd.allreduce_(tensor, op=hvd.Sum, prescale_factor=2.0, postscale_factor=0.5)
        self.assertIs(same, tensor)
        self.assertEqual(tensor.tolist(), [float(sum(range(1, self.size + 1)))] * 5)

    def test_min_max_product(self):
        tensor = torch.tensor([self.rank + 1, -self.rank])
        self.assertEqual(hvd.allreduce(tensor, op=hvd.Min).tolist(), [1, 1 - self.size])
        self.assertEqual(hvd.allreduce(tensor, op=hvd.Max).tolist(), [self.size, 0])
        self.assertEqual(hvd.allreduce(tensor, op=hvd.Product)[1].item(), 0)

    def test_grouped_allreduce(self):
        tensors = [torch.ones(3, dtype=dtype) * i for i, dtype in enumerate(DTYPES)]
        for i, result in enumerate(hvd.grouped_allreduce(tensors, op=hvd.Sum)):
            self.assertEqual(result.dtype, DTYPES[i])
            self.assertEqual(result.tolist(), [i * self.size] * 3)

    def test_errors_leave_the_job_alive(self):
        if self.size == 1:
            self.skipTest("Only one worker available")
        with self.assertRaises(HorovodInternalError):
            hvd.allreduce(torch.ones(17, 17 + self.rank), name="shapes")
        with self.assertRaises((HorovodInternalError, RuntimeError)):
            hvd.allreduce(torch.ones(3, dtype=DTYPES[self.rank % 2]), name="types")
        with self.assertRaises(HorovodInternalError):
            hvd.broadcast(torch.ones(3), root_rank=self.rank, name="roots")
        with self.assertRaises(ValueError):
            hvd.allreduce(torch.ones(3), average=True, op=hvd.Sum)
        self.assertEqual(hvd.allreduce(torch.ones(1), op=hvd.Sum).item(), self.size)

    def test_duplicate_names(self):
        if self.size == 1:
            self.skipTest("Only one worker available")
        if self.rank != 0:
            hvd.barrier()  # the first one of rank 0 stays pending
        handle = hvd.allreduce_async(torch.ones(4), name="duplicate")
        if self.rank == 0:
            with self.assertRaises(ValueError):
                hvd.allreduce_async(torch.ones(4), name="duplicate")
            hvd.barrier()
        self.assertEqual(hvd.synchronize(handle).tolist(), [1.0] * 4)
        self.assertIsNone(hvd.synchronize(handle))

    def test_allgather_of_different_sizes(self):
        tensor = torch.ones(self.rank, 4) * self.rank
        gathered = hvd.allgather(tensor)
        self.assertEqual(list(gathered.shape), [sum(range(self.size)), 4])
        self.assertEqual(gathered[:, 0].tolist(), [float(r) for r in range(self.size) for _ in range(r)])

    def test_broadcast(self):
        for dtype, root in itertools.product([*DTYPES, torch.uint8, torch.int8, torch.int16], range(self.size)):
            tensor = torch.ones(3, 2).mul(self.rank).to(dtype)
            self.assertTrue((hvd.broadcast(tensor, root) == root).all().item())
            hvd.broadcast_(tensor, root)
            self.assertTrue((tensor == root).all().item())

    def test_alltoall(self):
        splits = torch.tensor([self.rank + 1] * self.size, dtype=torch.int32)
        tensor = torch.arange(self.size).repeat_interleave(self.rank + 1)
        collected, received_splits = hvd.alltoall(tensor, splits)
        self.assertEqual(received_splits.tolist(), [r + 1 for r in range(self.size)])
        self.assertTrue((collected == self.rank).all().item())
        self.assertEqual(hvd.alltoall(torch.arange(self.size) * 10).tolist(), [10 * self.rank] * self.size)
        with self.assertRaises(ValueError):
            hvd.alltoall(torch.ones(self.size + 1, 2)) if self.size > 1 else hvd.alltoall(torch.ones(1), splits=[2])

    def test_reducescatter(self):
        tensor = torch.arange(2 * self.size + 1).float()
        mine = hvd.reducescatter(tensor, op=hvd.Sum)
        rows = [3 if r == 0 else 2 for r in range(self.size)]
        start = sum(rows[: self.rank])
        self.assertEqual(mine.tolist(), (tensor[start : start + rows[self.rank]] * self.size).tolist())

    def test_gradients(self):
        tensor = torch.ones(3, requires_grad=True)
        hvd.allreduce(tensor, op=hvd.Sum).backward(torch.ones(3))
        self.assertEqual(tensor.grad.tolist(), [float(self.size)] * 3)
        tensor = torch.ones(2, 2, requires_grad=True)
        hvd.broadcast(tensor, root_rank=0).sum().backward()
        self.assertEqual(tensor.grad.tolist(), [[1.0 if self.rank == 0 else 0.0] * 2] * 2)

    def test_process_sets(self):
        if self.size == 1:
            self.skipTest("Only one worker available")
        even = hvd.add_process_set(range(0, self.size, 2))
        if even.included():
            self.assertEqual((even.rank(), even.size()), (self.rank // 2, (self.size + 1) // 2))
            total = hvd.allreduce(torch.tensor([self.rank]), op=hvd.Sum, process_set=even)
            self.assertEqual(total.item(), sum(range(0, self.size, 2)))
        else:
            with self.assertRaises(ValueError):
                hvd.allreduce(torch.ones(1), process_set=even)
        self.assertTrue(hvd.remove_process_set(even))
        self.assertFalse(hvd.remove_process_set(hvd.global_process_set))

    def test_join(self):
        for _ in range(self.rank + 1):
            hvd.allreduce(torch.ones(2), op=hvd.Sum)
        self.assertIn(hvd.join(), range(self.size))
        self.assertEqual(hvd.allreduce(torch.ones(1), op=hvd.Sum).item(), self.size)

    def test_objects(self):
        obj = {"rank": self.rank, "values": [1, 2]} if self.rank == 0 else None
        self.assertEqual(hvd.broadcast_object(obj, root_rank=0), {"rank": 0, "values": [1, 2]})
        self.assertEqual(hvd.allgather_object(np.float32(self.rank), name="ranks"), list(range(self.size)))

    def test_optimizer(self):
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
        self.assertIsInstance(optimizer, torch.optim.Adam)
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.synchronize()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            with optimizer.skip_synchronize():
                optimizer.step()
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        self.assertEqual(len({tuple(row) for row in hvd.allgather(model.weight.data).tolist()}), 1)


if __name__ == "__main__":
    unittest.main()
