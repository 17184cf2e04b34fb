# SPDX-License-Identifier: Apache-2.0
"""run_ranks and contexts: results, failures of one rank, Ctrl-C, callbacks."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import tpfsdp


class ModelBug(Exception):
    pass


def remote_error(group: tpfsdp.Group) -> tpfsdp.Remote:
    """What a peer hears of a wait that was cancelled: the collective it waited in was posted already and goes through,
    the next one does not."""
    with pytest.raises(tpfsdp.Remote) as caught:
        for _ in range(2):
            group.barrier()
    return caught.value


def test_results_come_in_rank_order() -> None:
    def work(rank: tpfsdp.Context, factor: int) -> int:
        assert tpfsdp.current_context() is rank
        assert rank.world_size == 4
        assert rank.backend == "threads"
        return factor * rank.rank

    assert tpfsdp.run_ranks(4, work, 10) == [0, 10, 20, 30]


@pytest.mark.parametrize("failing", [0, 2])
def test_the_failing_ranks_own_exception_comes_out_and_the_others_end(failing: int) -> None:
    ended: dict[int, BaseException] = {}

    def work(rank: tpfsdp.Context) -> None:
        if rank.rank == failing:
            raise ModelBug(f"on rank {failing}")
        try:
            rank.group.barrier()
        except tpfsdp.TpfsdpError as error:
            ended[rank.rank] = error
            raise

    with pytest.raises(ModelBug, match=f"on rank {failing}") as caught:
        tpfsdp.run_ranks(3, work)
    assert isinstance(caught.value.__cause__, tpfsdp.CallbackFailed)
    assert set(ended) == {0, 1, 2} - {failing}
    assert all(isinstance(error, tpfsdp.Aborted) for error in ended.values())


def test_a_library_error_of_a_rank_keeps_its_class() -> None:
    def work(rank: tpfsdp.Context) -> None:
        if rank.rank == 1:
            rank.group.all_reduce(np.zeros(3), op="median")
        rank.group.barrier()

    with pytest.raises(tpfsdp.InvalidArgument, match="median"):
        tpfsdp.run_ranks(2, work)


def test_wrong_counts_of_ranks() -> None:
    for count in (0, -1):
        with pytest.raises(tpfsdp.InvalidArgument):
            tpfsdp.run_ranks(count, lambda rank: None)


def test_a_second_thread_in_one_tree_gets_busy() -> None:
    def work(rank: tpfsdp.Context) -> None:
        if rank.rank == 1:
            time.sleep(0.3)
            rank.group.barrier()
            return
        waiting = threading.Thread(target=rank.group.barrier)
        waiting.start()
        time.sleep(0.1)
        with pytest.raises(tpfsdp.Busy):
            rank.group.barrier()
        waiting.join()

    tpfsdp.run_ranks(2, work)


def test_threads_of_the_program_as_ranks() -> None:
    def work(rank: int) -> None:
        with tpfsdp.Context(rank=rank, world_size=3, store="local:own-threads") as context:
            sums[rank] = float(context.group.all_reduce(np.float32(rank)))

    sums = [0.0] * 3
    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sums == [3.0] * 3


def test_ctrl_c_while_ranks_wait() -> None:
    """The calling thread waits inside the library; the signal ends all ranks."""
    seen: list[type[BaseException]] = []

    def work(rank: tpfsdp.Context) -> None:
        try:
            if rank.rank == 0:
                rank.group.barrier()
            while True:
                time.sleep(0.02)
                rank.group.check()
        except tpfsdp.TpfsdpError as error:
            seen.append(type(error))
            raise

    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        tpfsdp.run_ranks(2, work)
    assert time.monotonic() - started < 5
    assert seen == [tpfsdp.Aborted] * 2


def test_ctrl_c_in_a_wait_of_this_thread() -> None:
    def peer() -> None:
        with tpfsdp.Context(rank=1, world_size=2, store="local:ctrl-c") as context:
            interrupted.wait()
            told.append(remote_error(context.group))
            context.group.reset()

    interrupted, told = threading.Event(), []
    thread = threading.Thread(target=peer)
    thread.start()
    with tpfsdp.Context(rank=0, world_size=2, store="local:ctrl-c") as context:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt) as caught:
            context.group.barrier()
        assert isinstance(caught.value.__cause__, tpfsdp.Cancelled)
        interrupted.set()
        context.group.reset()
    thread.join()
    assert [error.rank for error in told] == [0]


def test_an_interrupt_of_the_program_raises_its_own_exception() -> None:
    def interrupt() -> None:
        raise ModelBug("enough")

    def work(rank: tpfsdp.Context) -> None:
        if rank.rank == 1:
            time.sleep(0.5)
            assert remote_error(rank.group).rank == 0
        else:
            rank.set_interrupt(interrupt)
            with pytest.raises(ModelBug, match="enough") as caught:
                rank.group.barrier()
            assert isinstance(caught.value.__cause__, tpfsdp.Cancelled)
            rank.set_interrupt(None)
        rank.group.reset()
        rank.group.barrier()

    tpfsdp.run_ranks(2, work)


def test_a_free_port_is_told_before_the_others_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPFSDP_TOKEN", "only this test knows it")
    program = "import sys, tpfsdp\nwith tpfsdp.Context(rank=1, world_size=2, store=sys.argv[1]): pass"
    peers = []

    def start_the_other(store: str) -> None:
        assert store.startswith("tcp:127.0.0.1:") and not store.endswith(":0")
        peers.append(subprocess.Popen([sys.executable, "-c", program, store]))

    with tpfsdp.Context(rank=0, world_size=2, store="tcp:127.0.0.1:0", listening=start_the_other) as rank:
        assert rank.backend == "shm"
    assert [peer.wait(30) for peer in peers] == [0]


def test_ranks_of_a_launcher_leave_no_store(tmp_path: pathlib.Path) -> None:
    program = "import tpfsdp\nfor _ in range(3):\n  with tpfsdp.Context() as rank: assert rank.backend == 'shm'"
    launch = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_MCA_ess_base_jobid": "1234", "XDG_RUNTIME_DIR": str(tmp_path)}
    ranks = [
        subprocess.Popen([sys.executable, "-c", program], env=os.environ | launch | {"OMPI_COMM_WORLD_RANK": str(rank)})
        for rank in range(2)
    ]
    assert [rank.wait(60) for rank in ranks] == [0, 0]
    assert list(tmp_path.iterdir()) == []


def test_what_listening_raises_ends_the_join(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPFSDP_TOKEN", "only this test knows it")

    def listening(store: str) -> None:
        raise ModelBug(store)

    with pytest.raises(ModelBug, match="tcp:localhost:[1-9]") as caught:
        tpfsdp.Context(rank=0, world_size=2, store="tcp:localhost:0", listening=listening)
    assert isinstance(caught.value.__cause__, tpfsdp.CallbackFailed)


def test_log_records_reach_the_program() -> None:
    records: list[tuple[int, int, str, str]] = []
    with tpfsdp.Context(log=lambda *record: records.append(record), log_level=1) as context:
        assert context.world_size == 1
    assert all(isinstance(message, str) for _, _, _, message in records)


def test_contexts_do_not_leak_callables() -> None:
    import gc
    import weakref

    def interrupt() -> None:
        pass

    gone = weakref.ref(interrupt)
    with tpfsdp.Context() as context:
        context.set_interrupt(interrupt)
        del interrupt
        gc.collect()
        assert gone() is not None
        context.set_interrupt(None)
        gc.collect()
        assert gone() is None
