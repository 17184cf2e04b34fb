# SPDX-License-Identifier: Apache-2.0
"""The tree: names, look-ups, orders, buffers, ties, and what is refused."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

import tpfsdp

pytestmark = pytest.mark.usefixtures("alone")


class Block(tpfsdp.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = tpfsdp.Parameter(np.zeros((2, 3), np.float32))
        self.bias = tpfsdp.Parameter(np.zeros(2, np.float32))
        self.register_buffer("mean", np.zeros(2))
        self.register_buffer("scratch", np.ones(2), persistent=False)

    def extra_repr(self) -> str:
        return "in=3, out=2"


class Net(tpfsdp.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = Block()
        self.inner = tpfsdp.ModuleList([Block(), Block()])
        self.scale = tpfsdp.Parameter(np.ones(4, np.float32), requires_grad=False)


def test_orders_and_names() -> None:
    net = Net()
    assert [name for name, _ in net.named_children()] == ["first", "inner"]
    assert list(net.children()) == [net.first, net.inner]
    assert [name for name, _ in net.named_modules()] == ["", "first", "inner", "inner.0", "inner.1"]
    assert [name for name, _ in net.named_modules(prefix="net")][:2] == ["net", "net.first"]
    assert list(net.modules()) == [net, net.first, net.inner, net.inner[0], net.inner[1]]
    names = ["scale"] + [f"{at}.{name}" for at in ("first", "inner.0", "inner.1") for name in ("weight", "bias")]
    assert [name for name, _ in net.named_parameters()] == names
    assert [name for name, _ in net.named_parameters(prefix="p", recurse=False)] == ["p.scale"]
    assert list(net.parameters())[1] is net.first.weight
    assert [name for name, _ in net.named_buffers()][:3] == ["first.mean", "first.scratch", "inner.0.mean"]
    assert len(list(net.buffers())) == 6
    assert net.inner[1].weight.name == "inner.1.weight"


def test_memo_leaves_modules_out() -> None:
    net = Net()
    memo: set[tpfsdp.Module] = {net.first}
    assert [name for name, _ in net.named_modules(memo)] == ["", "inner", "inner.0", "inner.1"]
    assert memo == set(net.modules())


def test_lookups() -> None:
    net = Net()
    assert net.get_submodule("") is net
    assert net.get_submodule("inner.1") is net.inner[1]
    assert net.get_parameter("first.bias") is net.first.bias
    assert net.get_buffer("inner.0.mean").data_ptr() == net.inner[0].mean.__array_interface__["data"][0]
    for look_up, target, named in (
        (net.get_submodule, "inner.7", "7"),
        (net.get_submodule, "first.weight", "weight"),
        (net.get_parameter, "first", "first"),
        (net.get_parameter, "scale.x", "scale"),
        (net.get_buffer, "first.weight", "weight"),
    ):
        with pytest.raises(tpfsdp.NotFound, match=named):
            look_up(target)


def test_attributes_and_places() -> None:
    net = Net()
    other = Block()
    net.first = other
    assert net.get_submodule("first") is other
    net.set_submodule("inner.0", other, strict=True)
    assert net.inner[0] is other
    assert len(list(net.modules())) == 4
    assert len(list(net.named_modules(remove_duplicate=False))) == 5
    net.set_submodule("extra", Block())
    assert "extra" in dict(net.named_children())
    with pytest.raises(tpfsdp.NotFound):
        net.set_submodule("missing", Block(), strict=True)
    net.scale = None
    assert net.scale is None
    assert "scale" not in dict(net.named_parameters())
    net.first.mean = np.full(2, 5.0)
    assert (net.get_buffer("first.mean").numpy() == 5).all()
    net.note = "plain"
    assert net.note == "plain"
    del net.note


def test_tied_parameters_are_one() -> None:
    net = Net()
    net.inner[1].weight = net.first.weight
    assert len(list(net.parameters())) == 6
    assert net.get_parameter("inner.1.weight") is net.first.weight
    assert net.first.weight.name == "first.weight"


@pytest.mark.parametrize("name", ["", "a.b"])
def test_bad_names(name: str) -> None:
    net = Net()
    for register, value in (
        (net.add_module, Block()),
        (net.register_module, Block()),
        (net.register_parameter, tpfsdp.Parameter(np.zeros(2, np.float32))),
        (net.register_buffer, np.zeros(2)),
    ):
        with pytest.raises(tpfsdp.InvalidArgument):
            register(name, value)


def test_what_cannot_be_registered() -> None:
    net = Net()
    with pytest.raises(tpfsdp.InvalidArgument, match="forward"):
        net.add_module("forward", Block())
    with pytest.raises(tpfsdp.InvalidState):
        net.first.net = net  # a cycle
    for call in (
        lambda: net.add_module("x", 3),  # type: ignore[arg-type]
        lambda: net.register_parameter("x", np.zeros(3)),  # type: ignore[arg-type]
        lambda: setattr(net, "scale", 3),
        lambda: setattr(net, "first", "x"),
        lambda: net.set_submodule("first", 3),  # type: ignore[arg-type]
    ):
        with pytest.raises(TypeError):
            call()
    with pytest.raises(tpfsdp.Unsupported):
        del net.first

    class Early(tpfsdp.Module):
        def __init__(self) -> None:
            self.child = Block()

    with pytest.raises(AttributeError, match="super"):
        Early()


def test_modules_of_two_ranks_do_not_mix() -> None:
    net = Net()

    def work(rank: tpfsdp.Context) -> None:
        with pytest.raises(tpfsdp.InvalidArgument):
            net.add_module("stranger", Block())

    tpfsdp.run_ranks(1, work)


def test_flags() -> None:
    net = Net()
    assert net.training
    assert net.eval() is net
    assert not net.inner[1].training
    net.train()
    assert net.inner[1].training
    assert not net.scale.requires_grad
    assert net.requires_grad_() is net
    assert net.scale.requires_grad
    net.first.weight.requires_grad_(False)
    assert not net.first.weight.requires_grad


def test_texts() -> None:
    net = Net()
    text = repr(net)
    assert text.startswith("Net(\n  (first): Block(in=3, out=2)")
    assert "(1): Block(in=3, out=2)" in text
    assert "weight" in net.describe()
    assert repr(net.first.weight) == "<tpfsdp.Parameter first.weight: f32 [2, 3]>"


def test_parameters_before_sharding() -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    param = tpfsdp.Parameter(values)
    assert (param.shape, param.dtype, param.name, param.is_sharded) == ((2, 3), np.float32, "", False)
    assert param.full.__array_interface__["data"][0] == values.__array_interface__["data"][0]
    assert param.grad is None
    with pytest.raises(tpfsdp.TpfsdpError):
        param.shard  # noqa: B018
    param.set_data(np.ones((2, 3), np.float32))
    assert (param.full == 1).all()
    with pytest.raises(tpfsdp.InvalidArgument):
        tpfsdp.Parameter(np.zeros(3, np.int32))
    assert not tpfsdp.Parameter(np.zeros(3, np.int32), requires_grad=False).requires_grad
    with pytest.raises(tpfsdp.Unsupported):
        tpfsdp.Parameter(values.T)


def test_nothing_leaks() -> None:
    source = np.zeros((4, 4), np.float32)
    block = Block()
    block.weight = tpfsdp.Parameter(source)
    gone, source_gone = weakref.ref(block), weakref.ref(source)
    del block, source
    gc.collect()
    assert gone() is None
    assert source_gone() is None
