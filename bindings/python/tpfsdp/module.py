# SPDX-License-Identifier: Apache-2.0
"""The program's modules: a tree of names, parameters and buffers, and the calls that drive it through forward and
backward. Names and orders are PyTorch's ``nn.Module``; only automatic differentiation is not here."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from . import capi, hooks, manual
from ._handle import Owner, ask, known, options, read_blob, shared
from .context import Context, current_context
from .errors import InvalidArgument, TpfsdpError, Unsupported
from .parameter import Parameter, RemovableHandle
from .tensor import Tensor

_FORWARD, _BACKWARD = 0, 1


class Module(Owner):
    """A node of the tree. Subclasses call ``super().__init__()`` first, assign parameters and modules to attributes,
    and write ``forward`` and ``backward``, which are called by ``module(x)`` and ``module.run_backward(dy)``.

    Args:
        context: the rank it belongs to; None: the current one.

    Threads: one at a time on a tree; a second one gets Busy.
    """

    _context: Context
    _parameters: dict[str, Parameter | None]
    _modules: dict[str, Module | None]
    _buffers: dict[str, tuple[Tensor | None, bool]]
    _calls: list[hooks.Call]  # of this module, that are running: recursion nests them
    # False: a plain container, not to be sharded by itself.
    _has_forward = True

    def __init__(self, *, context: Context | None = None) -> None:
        context = context or current_context()
        record = options(
            capi.module_options(),
            class_name=type(self).__name__,
            has_forward=capi.TOGGLE_ON if self._has_forward else capi.TOGGLE_OFF,
        )
        self._set_up(capi.module_create(context._handle, record), context)

    def _set_up(self, handle: Any, context: Context) -> None:
        object.__setattr__(self, "_parameters", {})
        object.__setattr__(self, "_modules", {})
        object.__setattr__(self, "_buffers", {})
        object.__setattr__(self, "_context", context)
        object.__setattr__(self, "_calls", [])
        self._own(handle)

    @classmethod
    def _of(cls, handle: Any) -> Module:
        found = known(handle)
        if isinstance(found, Module):
            return found
        module = Module.__new__(Module)
        module._set_up(handle, Context._of(shared(ask(capi.module_get_info, capi.module_info, handle).context)))
        return module

    # ---- The tree ----

    def add_module(self, name: str, module: Module | None) -> None:
        """Hangs ``module`` under ``name``; None: an empty place.

        Raises:
            InvalidArgument: an empty name, a dot in it, or an attribute that exists.
            InvalidState: a cycle, or sharded already.
        """
        if module is not None and not isinstance(module, Module):
            raise TypeError(f"a Module or None is needed for {name!r}, not {type(module).__name__}")
        self._check_free(name, self._modules)
        capi.module_add_module(self._handle, name, None if module is None else module._handle)
        self._remember(self._modules, name, module, module)

    def register_module(self, name: str, module: Module | None) -> None:
        """The same as :meth:`add_module`."""
        self.add_module(name, module)

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Registers ``param``; one in two places is tied. None: an empty place."""
        if param is not None and not isinstance(param, Parameter):
            raise TypeError(f"a Parameter or None is needed for {name!r}, not {type(param).__name__}")
        self._check_free(name, self._parameters)
        capi.module_register_parameter(self._handle, name, None if param is None else param._handle)
        self._remember(self._parameters, name, param, param)

    def register_buffer(self, name: str, tensor: Any, persistent: bool = True) -> None:
        """Registers or replaces a buffer: an array, a :class:`Tensor` or a DLPack producer, not copied. None: an empty
        place. The attribute reads as the array.

        Args:
            persistent: part of state dicts.
        """
        held = tensor if isinstance(tensor, Tensor) or tensor is None else Tensor.from_numpy(tensor)
        self._check_free(name, self._buffers)
        capi.module_register_buffer(self._handle, name, None if held is None else held._handle, persistent)
        self._remember(self._buffers, name, (held, persistent), None if held is None else held.numpy())

    def _check_free(self, name: str, table: dict[str, Any]) -> None:
        if name not in table and hasattr(self, name):
            raise InvalidArgument(f"{type(self).__name__} has an attribute {name!r} already")

    def _remember(self, table: dict[str, Any], name: str, entry: Any, value: Any) -> None:
        table[name] = entry
        object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        tables = self.__dict__
        if "_modules" not in tables:
            if isinstance(value, (Parameter, Module)):
                raise AttributeError(f"call super().__init__() before you assign {name!r}")
            object.__setattr__(self, name, value)
        elif isinstance(value, Parameter):
            self.register_parameter(name, value)
        elif isinstance(value, Module):
            self.add_module(name, value)
        elif name in self._buffers:
            self.register_buffer(name, value, self._buffers[name][1])
        elif name in self._parameters or name in self._modules:
            if value is not None:
                kind = "parameter" if name in self._parameters else "module"
                raise TypeError(f"cannot assign {type(value).__name__} to {kind} {name!r}")
            self.register_parameter(name, None) if name in self._parameters else self.add_module(name, None)
        else:
            object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        if any(name in table for table in (self._parameters, self._modules, self._buffers)):
            raise Unsupported(f"{name!r} is registered; assign None to empty its place")
        object.__delattr__(self, name)

    def set_submodule(self, target: str, module: Module, strict: bool = False) -> None:
        """Puts ``module`` at the dotted path ``target``; ``strict``: only in place of one that is there.

        Raises:
            NotFound: no such place.
        """
        if not isinstance(module, Module):
            raise TypeError(f"a Module is needed at {target!r}, not {type(module).__name__}")
        capi.module_set_submodule(self._handle, target, module._handle, strict)
        path, _, name = target.rpartition(".")
        parent = self.get_submodule(path)
        parent._remember(parent._modules, name, module, module)

    def get_submodule(self, target: str) -> Module:
        """The module at a dotted path; "" is this one. Raises NotFound."""
        return Module._of(capi.module_get_submodule(self._handle, target))

    def get_parameter(self, target: str) -> Parameter:
        """The parameter at a dotted path. Raises NotFound."""
        return Parameter._of(capi.module_get_parameter(self._handle, target))

    def get_buffer(self, target: str) -> Tensor:
        """The buffer at a dotted path. Raises NotFound."""
        return Tensor._of(capi.module_get_buffer(self._handle, target))

    def children(self) -> Iterator[Module]:
        """Direct children, in order of registration."""
        return (child for _, child in self.named_children())

    def named_children(self) -> Iterator[tuple[str, Module]]:
        return _entries(capi.module_list_children(self._handle), capi.list_get_module, Module._of)

    def modules(self) -> Iterator[Module]:
        """This module and all below it, each once, parents first."""
        return (module for _, module in self.named_modules())

    def named_modules(
        self, memo: set[Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Module]]:
        """The same with dotted names. ``memo``: modules to leave out; those given are added to it."""
        memo = set() if memo is None else memo
        handle = capi.module_list_modules(self._handle, prefix, remove_duplicate)
        for name, module in _entries(handle, capi.list_get_module, Module._of):
            if remove_duplicate:
                if module in memo:
                    continue
                memo.add(module)
            yield name, module

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """Parameters, tied ones once; the same on all ranks, empty shards included."""
        return (param for _, param in self.named_parameters(recurse=recurse))

    def named_parameters(self, prefix: str = "", recurse: bool = True) -> Iterator[tuple[str, Parameter]]:
        handle = capi.module_list_parameters(self._handle, recurse)
        start = f"{prefix}." if prefix else ""
        return ((start + name, param) for name, param in _entries(handle, capi.list_get_param, Parameter._of))

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        return (buffer for _, buffer in self.named_buffers(recurse=recurse))

    def named_buffers(self, prefix: str = "", recurse: bool = True) -> Iterator[tuple[str, Tensor]]:
        handle = capi.module_list_buffers(self._handle, recurse)
        start = f"{prefix}." if prefix else ""
        return ((start + name, buffer) for name, buffer in _entries(handle, capi.list_get_tensor, Tensor._of))

    # ---- The whole subtree ----

    @property
    def training(self) -> bool:
        return bool(ask(capi.module_get_info, capi.module_info, self._handle).training)

    def train(self, mode: bool = True) -> Module:
        """Training or evaluation mode of every module."""
        capi.module_train(self._handle, mode)
        return self

    def eval(self) -> Module:
        return self.train(False)

    def requires_grad_(self, requires_grad: bool = True) -> Module:
        """Freezes or unfreezes all parameters, the same on all ranks, between steps."""
        capi.module_set_requires_grad(self._handle, requires_grad)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops all gradient shards, or zeroes those that exist."""
        capi.module_zero_grad(self._handle, set_to_none)

    def extra_repr(self) -> str:
        """Shown by ``repr``; for subclasses to write."""
        return ""

    def describe(self) -> str:
        """The tree as the library sees it: one module a line, with classes, shapes and sharding."""
        return read_blob(capi.module_describe(self._handle)).decode()

    def __repr__(self) -> str:
        lines = [
            f"({name}): " + repr(child).replace("\n", "\n  ")
            for name, child in self._modules.items()
            if child is not None
        ]
        extra = self.extra_repr()
        if not lines:
            return f"{type(self).__name__}({extra})"
        return "\n  ".join([f"{type(self).__name__}({extra}", *lines]) + "\n)"

    # ---- Forward and backward ----

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """For subclasses to write. Called by ``module(...)``, when ``param.full`` is there."""
        raise NotImplementedError(f"{type(self).__name__} has no forward")

    def backward(self, *grads: Any) -> Any:
        """For subclasses to write: from the gradients of the outputs to those of the inputs, storing those of the
        parameters by ``param.grad_buffer()``. Called by ``run_backward``."""
        raise NotImplementedError(f"{type(self).__name__} has no backward")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Gathers the parameters, runs ``forward``, and frees them again.

        Raises:
            what ``forward`` raises: the outermost call tells the peers, which get Remote. Then ``reset_iter_state``.
        """
        return self._drive(_FORWARD, self.forward, args, kwargs)

    def run_backward(self, *grads: Any) -> Any:
        """Gathers the parameters, runs ``backward``, frees them and starts to average the gradients. The outermost call
        waits for all of it: then ``param.grad`` is there and shards may be written. PyTorch: ``loss.backward()``."""
        return self._drive(_BACKWARD, self.backward, grads, {})

    def _drive(self, phase: int, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        depth = self._context._depth
        outermost = depth[phase] == 0
        call = hooks.Call(args, kwargs)
        self._calls.append(call)
        try:
            self._before(phase)
            depth[phase] += 1
            try:
                call.result = function(*call.args, **call.kwargs)
            finally:
                depth[phase] -= 1
            self._after(phase, outermost)
            return call.result
        except BaseException as error:
            with contextlib.suppress(TpfsdpError):  # the first failure is the one to tell of
                if phase == _FORWARD:
                    manual.fail_forward(self)
            if outermost:
                with contextlib.suppress(TpfsdpError):  # nothing is sharded here, or the library has told it already
                    capi.root_fail(self._handle, f"{type(error).__name__}: {error}")
            raise
        finally:
            self._calls.pop()

    def _before(self, phase: int) -> None:
        if phase == _FORWARD:
            manual.pre_forward(self)
        else:
            manual.pre_backward(self)

    def _after(self, phase: int, outermost: bool) -> None:
        if phase == _FORWARD:
            manual.post_forward(self)
            return
        manual.post_backward(self)
        if outermost:
            manual.end_backward(self)

    # ---- Hooks: they run in the order of registration; parameters are full in all of them ----

    def register_forward_pre_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False
    ) -> RemovableHandle:
        """Calls ``hook(module, args)`` before forward, or ``hook(module, args, kwargs)``; what it returns, if not None,
        takes the place of the arguments."""
        run = hooks.before_forward(hook, with_kwargs)
        return hooks.register(self, capi.HOOK_FORWARD_PRE, run, prepend)

    def register_forward_hook(
        self,
        hook: Callable[..., Any],
        *,
        prepend: bool = False,
        with_kwargs: bool = False,
        always_call: bool = False,
    ) -> RemovableHandle:
        """Calls ``hook(module, args, output)`` after forward, or ``hook(module, args, kwargs, output)``; what it
        returns, if not None, takes the place of the output.

        Args:
            always_call: also when forward failed, with None as output.
        """
        run = hooks.after_forward(hook, with_kwargs)
        return hooks.register(self, capi.HOOK_FORWARD, run, prepend, always_call)

    def register_full_backward_pre_hook(self, hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
        """Calls ``hook(module, grad_output)`` before backward; what it returns, if not None, takes the place of
        ``grad_output``, a tuple."""
        return hooks.register(self, capi.HOOK_BACKWARD_PRE, hooks.before_backward(hook), prepend)

    def register_full_backward_hook(self, hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
        """Calls ``hook(module, grad_input, grad_output)`` after backward, before gradients are averaged; what it
        returns, if not None, takes the place of ``grad_input``, a tuple."""
        return hooks.register(self, capi.HOOK_BACKWARD, hooks.after_backward(hook), prepend)


class ModuleList(Module):
    """Modules by number. A plain container: shard its children, not the list."""

    _has_forward = False

    def __init__(self, modules: Any = (), *, context: Context | None = None) -> None:
        super().__init__(context=context)
        for module in modules:
            self.append(module)

    def append(self, module: Module) -> ModuleList:
        self.add_module(str(len(self._modules)), module)
        return self

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Module]:
        return self.children()

    def __getitem__(self, index: int) -> Module:
        return self.get_submodule(str(range(len(self))[index]))


def _entries(handle: Any, get: Callable[[Any, int], Any], of: Callable[[Any], Any]) -> Iterator[tuple[str, Any]]:
    """The entries of a list of the library, which is a snapshot."""
    try:
        count = capi.list_get_count(handle)
        return iter([(capi.list_get_name(handle, index), of(get(handle, index))) for index in range(count)])
    finally:
        capi.handle_release(handle)
