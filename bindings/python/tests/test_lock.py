# SPDX-License-Identifier: Apache-2.0
"""Hooks that need not wait keep the interpreter lock; those that may wait give it up."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import tpfsdp
from tpfsdp import capi


class Other:
    """Another thread that wants the interpreter lock. It gets it only where this one gives it up by itself, since the
    interpreter is told never to switch."""

    def __init__(self) -> None:
        self.ran = False
        self._start = threading.Lock()
        self._start.acquire()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        self._start.acquire()
        self.ran = True

    def ran_during(self, call: Callable[[], object], seconds: float = 0.0) -> bool:
        self._start.release()
        call()
        end = time.monotonic() + seconds
        while not self.ran and time.monotonic() < end:
            call()
        ran = self.ran
        self._thread.join()
        return ran


@pytest.fixture
def never_switch() -> Iterator[None]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    yield
    sys.setswitchinterval(interval)


@pytest.fixture
def model(alone: tpfsdp.Context) -> tpfsdp.Module:
    model = tpfsdp.Module()
    model.weight = tpfsdp.Parameter(np.zeros((4, 4), np.float32))
    tpfsdp.fully_shard(model)
    tpfsdp.prepare(model)
    return model


def test_hooks_that_need_not_wait_keep_the_lock(model: tpfsdp.Module, never_switch: None) -> None:
    handle, weight = model._handle, model.weight

    def step() -> None:
        for _ in range(200):
            assert capi.module_try_pre_forward(handle)
            capi.module_post_forward(handle)
            assert capi.module_try_pre_backward(handle)
            weight.full[0, 0] += 1
            assert capi.module_try_post_backward(handle)
            assert capi.module_try_end_backward(handle)
            capi.module_zero_grad(handle, True)

    assert not Other().ran_during(step)


def test_module_calls_keep_the_lock_when_nothing_waits(model: tpfsdp.Module, never_switch: None) -> None:
    model.forward = lambda: model.weight.full.sum()
    model.backward = lambda: None

    def step() -> None:
        for _ in range(100):
            model()
            model.run_backward()

    assert not Other().ran_during(step)


@pytest.mark.parametrize("form", ["pre_forward", "barrier", "all_reduce"])
def test_forms_that_may_wait_give_it_up(model: tpfsdp.Module, never_switch: None, form: str) -> None:
    group = tpfsdp.current_context().group

    def call() -> None:
        if form == "pre_forward":
            capi.module_pre_forward(model._handle)
            capi.module_post_forward(model._handle)
        elif form == "barrier":
            group.barrier()
        else:
            group.all_reduce(np.zeros(100_000, np.float32))

    assert Other().ran_during(call, seconds=20)


def test_a_thread_of_the_library_keeps_its_python_state() -> None:
    """Thread-local data survives from one callback to the next on the same thread of the library."""
    local = threading.local()
    names = []

    class Memory:
        def acquire(self, param: tpfsdp.Parameter, size_bytes: int, alignment_bytes: int) -> np.ndarray:
            local.count = getattr(local, "count", 0) + 1
            return np.empty(size_bytes, np.uint8)

        def release(self, param: tpfsdp.Parameter, memory: np.ndarray) -> None:
            pass

    def work(rank: tpfsdp.Context) -> int:
        model = tpfsdp.Module()
        model.weight = tpfsdp.Parameter(np.zeros((4, 4), np.float32))
        tpfsdp.fully_shard(model, host_memory=Memory())
        names.append(threading.current_thread().name)
        for _ in range(3):
            with tpfsdp.scope(model):
                pass
        return local.count

    assert tpfsdp.run_ranks(2, work) == [3, 3]
    assert threading.current_thread().name not in names
