# SPDX-License-Identifier: Apache-2.0
"""Several ranks in one process, each on a thread of the library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from . import capi
from ._handle import shared
from .context import Context, _current, make_options
from .errors import GroupError, ProgramError, Remote, TpfsdpError

T = TypeVar("T")


def _first(failures: list[BaseException]) -> BaseException:
    """The failure that the others follow from: a peer's REMOTE can be raised before its cause has left its rank."""

    def order(error: BaseException) -> int:
        if not isinstance(error, TpfsdpError):
            return 0
        if isinstance(error, ProgramError):
            return 1
        return 3 if isinstance(error, (Remote, GroupError)) else 2

    return min(failures, key=order)


def run_ranks(rank_count: int, function: Callable[..., T], *args: object, **options: Any) -> list[T]:
    """Calls ``function(context, *args)`` as ``rank_count`` ranks, each on its own thread with its context current.

    Args:
        options: as for :class:`Context`, but for rank, world_size and store.

    Returns:
        what each rank's call returned, in rank order.

    Raises:
        what a rank raised: the others then get :class:`Aborted`, and its exception comes here from the library's.
        KeyboardInterrupt: Ctrl-C while ranks wait ends all of them.
    """
    results: list[Any] = [None] * max(0, rank_count)
    failures: list[BaseException] = []

    def run_one(record: Any) -> int | None:
        rank = record.rank
        context = Context._of(shared(record.context))
        token = _current.set(context)
        try:
            results[rank] = function(context, *args)
        except BaseException as error:
            failures.append(error)
            return error.status if isinstance(error, TpfsdpError) else capi.ERR_CALLBACK
        finally:
            _current.reset(token)
        return None

    try:
        capi.context_run_ranks(rank_count, make_options(**options), run_one)
    except TpfsdpError as error:
        if not failures:
            raise
        own = _first(failures)
        if own.__cause__ is None:
            raise own from error
        raise own
    finally:
        failures.clear()
    return results
