# SPDX-License-Identifier: Apache-2.0
"""Names and signatures against the seed page (seed-surface.json), and exactly what is missing yet."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest

import tpfsdp

SEED = json.loads((Path(__file__).parent / "seed-surface.json").read_text())
NAMES: dict[str, Any] = SEED["names"]
MODULE_METHODS: dict[str, Any] = NAMES["FullyShardedDataParallel"]["methods"]

MISSING_NAMES = {
    "BackwardPrefetch", "CPUOffload", "CPUOffloadPolicy", "DataParallelMeshDims", "FullOptimStateDictConfig",
    "FullStateDictConfig", "FullyShardedDataParallel", "LocalOptimStateDictConfig", "LocalStateDictConfig",
    "MixedPrecision", "OffloadPolicy", "OptimStateDictConfig", "OptimStateKeyType",
    "ShardedOptimStateDictConfig", "ShardedStateDictConfig", "ShardingStrategy", "StateDictConfig", "StateDictSettings",
    "StateDictType", "share_comm_ctx",
}  # fmt: skip
MISSING_FSDP_MODULE_METHODS = {
    "module", "set_all_reduce_hook", "set_allocate_memory_from_process_group_for_comm", "set_custom_all_gather",
    "set_custom_reduce_scatter", "set_force_sum_reduction_for_comms", "set_gradient_divide_factor",
    "set_post_optim_event", "set_reduce_scatter_divide_factor", "set_reduce_scatter_max_input_buffers",
    "set_requires_all_reduce", "set_separate_reduce_scatter_group", "set_symm_mem_for_comm",
}  # fmt: skip
MISSING_MODULE_METHODS = {
    "bfloat16", "compile", "cpu", "cuda", "double", "float", "get_extra_state", "half",
    "register_load_state_dict_post_hook", "register_load_state_dict_pre_hook", "register_state_dict_post_hook",
    "register_state_dict_pre_hook", "set_extra_state", "share_memory", "to", "to_empty", "type",
}  # fmt: skip
# Beside the seed's arguments, keyword-only.
EXTRA = {"fully_shard": {"granule", "host_memory", "init", "layout", "unshard_mode"}}


def signature_of(function: Any) -> list[dict[str, str]]:
    described = []
    for parameter in inspect.signature(function).parameters.values():
        entry = {"name": parameter.name, "kind": parameter.kind.name.lower()}
        if parameter.default is not parameter.empty:
            entry["default"] = repr(parameter.default)
        described.append(entry)
    return described


def test_missing_names_are_these() -> None:
    assert {name for name in NAMES if not hasattr(tpfsdp, name)} == MISSING_NAMES


def test_missing_methods_are_these() -> None:
    on_page = set(SEED["module_methods_on_page"])
    assert {name for name in on_page if not hasattr(tpfsdp.Module, name)} == MISSING_MODULE_METHODS
    methods = NAMES["FSDPModule"]["methods"]
    assert {name for name in methods if not hasattr(tpfsdp.FSDPModule, name)} == MISSING_FSDP_MODULE_METHODS


@pytest.mark.parametrize("name", sorted(set(NAMES) - MISSING_NAMES))
def test_signature(name: str) -> None:
    found = signature_of(getattr(tpfsdp, name))
    extra = [entry for entry in found if entry["name"] in EXTRA.get(name, ())]
    assert all(entry["kind"] == "keyword_only" for entry in extra)
    assert [entry for entry in found if entry not in extra] == NAMES[name]["params"]
    for method, expected in NAMES[name].get("methods", {}).items():
        if not (name == "FSDPModule" and method in MISSING_FSDP_MODULE_METHODS):
            assert signature_of(getattr(getattr(tpfsdp, name), method)) == expected["params"], method


@pytest.mark.parametrize("name", sorted(set(SEED["module_methods_on_page"]) - MISSING_MODULE_METHODS))
def test_module_method_signature(name: str) -> None:
    assert signature_of(getattr(tpfsdp.Module, name)) == MODULE_METHODS[name]["params"]


def test_every_public_name_says_what_it_is() -> None:
    for name in tpfsdp.__all__:
        value = getattr(tpfsdp, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert inspect.getdoc(value), name
