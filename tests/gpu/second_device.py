"""A second device without a GPU: tensors with real values that say they are elsewhere.

A `Far` tensor reports the device ``far:0`` and computes on the CPU. What a GPU would not like is
counted:

- ``mismatches``: operations on a far tensor and a CPU tensor of one dimension or more, an error on
  a GPU;
- ``waits``: by line of the trainer, how often a far value is read on the host, which stops a GPU
  until all queued work is done, or copied from the host to the device without ``non_blocking``,
  which does too. Gathering objects from all ranks counts as one: NCCL takes them through the
  device.
What keeps an entry for every shape grows without end, as each microbatch has its own: `cached`.

Nothing is shown of kernels, autocast, streams, memory and branches for ``cuda``.
"""

import functools
import gc
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

import trainer.parallel.ranks
import trainer.parallel.strategy
from tests.paths import ROOT
from trainer.rollouts.decoding import SharedPrefixBatch

FAR = "far"
MAY_MIX = {
    "aten::copy_",
    "aten::index",
    "aten::index_put_",
    "aten::index_put",
    "aten::_index_put_impl_",
}
READS_A_SIZE = {"aten::nonzero", "aten::masked_select", "aten::_unique2", "aten::equal"}
waits: Counter[str] = Counter()
mismatches: Counter[str] = Counter()


def caller() -> str:
    """File and line of the trainer that is running."""
    frame = sys._getframe(1)
    root = f"{ROOT}/trainer/"
    while frame is not None and not frame.f_code.co_filename.startswith(root):
        frame = frame.f_back
    return f"{frame.f_code.co_filename.removeprefix(f'{ROOT}/')}:{frame.f_lineno}" if frame else "?"


def cached() -> Counter[str]:
    """How many results the cached functions of this process keep, by their modules."""
    entries: Counter[str] = Counter()
    for function in gc.get_objects():
        if isinstance(function, functools._lru_cache_wrapper):
            entries[function.__module__] += function.cache_info().currsize
    return entries


class Far(torch.Tensor):
    """A tensor that says it is on ``far:0``."""

    __torch_function__ = torch._C._disabled_torch_function_impl
    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor):
        wrapped = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=torch.device(FAR, 0),
        )
        wrapped.inner = inner
        return wrapped

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return compute(func, args, kwargs or {})


def _near(leaf: Any) -> Any:
    return leaf.inner if isinstance(leaf, Far) else leaf


def _far(leaf: Any) -> Any:
    return Far(leaf) if isinstance(leaf, torch.Tensor) else leaf


def _each(change: Callable[[Any], Any], value: Any) -> Any:
    """Change what stands in lists and tuples; torch's own way to do it takes most of a test."""
    if type(value) in (list, tuple):
        return type(value)([_each(change, part) for part in value])
    return change(value)


def _tensors(value: Any) -> list[torch.Tensor]:
    if type(value) in (list, tuple):
        return [tensor for part in value for tensor in _tensors(part)]
    return [value] if isinstance(value, torch.Tensor) else []


def _is_far(device: Any) -> bool:
    return device is not None and torch.device(device).type == FAR


def _share_memory(leaf: Any, other: Any) -> bool:
    return _near(leaf).untyped_storage().data_ptr() == _near(other).untyped_storage().data_ptr()


def compute(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run one operation on the CPU, note what a GPU would not like, and wrap what it gives."""
    name = func._schema.name
    wanted = kwargs.get("device")
    tensors = _tensors([*args, *kwargs.values()])
    far = [tensor for tensor in tensors if isinstance(tensor, Far)]
    if not far and not _is_far(wanted):
        return func(*args, **kwargs)
    near = [tensor for tensor in tensors if not isinstance(tensor, Far) and tensor.dim() > 0]
    if far and near and name not in MAY_MIX and name.startswith("aten::"):
        mismatches[f"{caller()} {name}"] += 1
    reads = name in READS_A_SIZE or name == "aten::_local_scalar_dense"
    if name == "aten::_to_copy" and wanted is not None:
        reads = not _is_far(wanted)
    if name.startswith("aten::index") and len(args) > 1 and isinstance(args[1], (list, tuple)):
        masks = [place for place in args[1] if place is not None and place.dtype == torch.bool]
        fills = name != "aten::index" and args[2].dim() == 0
        reads = bool(masks) and not fills
    copies = len(far) < len(tensors) and (
        (name == "aten::copy_" and isinstance(args[0], Far) and not (len(args) > 2 and args[2]))
        or (name == "aten::_to_copy" and _is_far(wanted) and not kwargs.get("non_blocking"))
        or (name.startswith("aten::index") and bool(far))
    )
    # what a collective hands back, unwrapped
    if name == "aten::copy_" and _share_memory(args[0], args[1]):
        copies = False
    if (far and reads) or copies:
        waits[caller()] += 1
    if _is_far(wanted):
        kwargs = {**kwargs, "device": torch.device("cpu")}
    near_kwargs = {key: _each(_near, value) for key, value in kwargs.items()}
    result = func(*_each(_near, args), **near_kwargs)
    if name == "aten::_to_copy" and far and wanted is not None and not _is_far(wanted):
        return result
    if args and isinstance(args[0], Far) and (name == "aten::copy_" or result is args[0].inner):
        return args[0]
    return _each(_far, result)


class Operations(TorchDispatchMode):
    """Operations that make tensors on ``far`` from nothing."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return compute(func, args, kwargs or {})


class Functions(TorchFunctionMode):
    """What does not go through operations: `torch.tensor`, `tolist`, `numpy`."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func in (torch.tensor, torch.as_tensor) and _is_far(kwargs.get("device")):
            device = kwargs.pop("device")
            return args[0] if isinstance(args[0], Far) else func(*args, **kwargs).to(device)
        if func is torch.Tensor.new_tensor and isinstance(args[0], Far):
            return torch.tensor(args[1], dtype=kwargs.get("dtype") or args[0].dtype).to(
                args[0].device
            )
        if func in (torch.Tensor.tolist, torch.Tensor.numpy) and isinstance(args[0], Far):
            waits[caller()] += 1
            return func(args[0].inner)
        if func == torch.Tensor.data.__set__ and isinstance(args[0], Far):
            args[0].inner = args[1].inner
        # by which shared weights are told
        if func in (torch.Tensor.untyped_storage, torch.Tensor.data_ptr):
            return func(_near(args[0]))
        return func(*args, **kwargs)


def set_up() -> None:
    """Make ``far`` a device of this process, and the trainer's."""
    _setup_privateuseone_for_python_backend(FAR)
    module = torch.far  # type: ignore[attr-defined]
    module.get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]
    module.is_available = lambda: True
    module.device_count = lambda: 1
    module.current_device = lambda: 0
    module._is_in_bad_fork = lambda: False
    module.manual_seed_all = lambda seed: None
    in_inference_mode = SharedPrefixBatch._next_hidden  # which wrappers cannot be
    SharedPrefixBatch._next_hidden = torch.no_grad()(in_inference_mode.__wrapped__)
    for user in (trainer.parallel.ranks, trainer.parallel.strategy):
        user.local_device = lambda wanted="auto": torch.device(FAR, 0)
    gather = torch.distributed.all_gather_object

    def gather_counted(*args: Any, **kwargs: Any) -> None:
        waits[caller()] += 1
        gather(*args, **kwargs)

    torch.distributed.all_gather_object = gather_counted
