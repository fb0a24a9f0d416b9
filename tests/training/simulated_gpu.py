"""Simulated GPU for CPU-only PyTorch, which detects mixed devices and synchronizations without computing anything.

PyTorch's Python backend for the PrivateUse1 key provides a device with dummy streams and guards, so autograd works.
FakeTensorMode runs the shape functions and raises an error if devices are mixed. Code that checks
`device.type == "cpu"` takes its GPU branch. The values that the host reads are supplied by `answer`.

Synchronizations inside C++ kernels and numerical results are not covered.
"""

import contextlib
import re
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils import _foreach_utils
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

DEVICE_TYPE = "simulatedgpu"
WITHOUT_KERNEL = frozenset(
    re.findall(
        r"\w+",
        "view _unsafe_view reshape _reshape_alias view_as t transpose permute movedim expand select slice split "
        "split_with_sizes chunk unbind unsqueeze squeeze unflatten diagonal as_strided alias detach lift lift_fresh "
        "device empty empty_like new_empty empty_strided new_empty_strided is_same_size sym_size _local_scalar_dense",
    )
)
"""Operators that launch no kernel."""
READS = frozenset(["item", "_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "_unique2"])
"""Operators that make the host wait for their results."""
Answer = Callable[[str, Tensor], Any]


def answer_one(what: str, tensor: Tensor) -> Any:
    """Supply the number 1 for each value that the host reads; for `nonzero`, return the number of rows."""
    if what == "nonzero":
        return tensor.shape[0]
    return nested(tuple(tensor.shape), 1.0 if tensor.is_floating_point() else 1) if what == "tolist" else 1


def nested(shape: tuple[int, ...], value: float) -> Any:
    """Return nested lists with this shape."""
    return [nested(shape[1:], value) for _ in range(shape[0])] if shape else value


class SimulatedGpu:
    """Context in which `device` exists; `syncs` and `launches` record the events inside it."""

    def __init__(self, answer: Answer = answer_one) -> None:
        _register()
        self.device = torch.device(DEVICE_TYPE, 0)
        self.answer = answer
        self.syncs: list[str] = []
        """Operators for which the host waited, each with the line in the package that called it."""
        self.launches = Counter[str]()
        """Operators that launched kernels, with counts."""

    def reset(self) -> None:
        """Clear the recorded events."""
        self.syncs.clear()
        self.launches.clear()

    def sync(self, what: str) -> None:
        """Record that the host waits for the device."""
        self.syncs.append(f"{what} in {_caller()}")

    def __enter__(self) -> "SimulatedGpu":
        self._stack = contextlib.ExitStack()
        own_tolist = FakeTensor.tolist

        def tolist(tensor: Tensor) -> Any:  # PyTorch's implementation reads the elements one by one
            if not _on_device(tensor):
                return own_tolist(tensor)
            self.sync("tolist")
            return self.answer("tolist", tensor)

        FakeTensor.tolist = tolist  # type: ignore[method-assign]
        self._stack.callback(setattr, FakeTensor, "tolist", own_tolist)
        self._stack.enter_context(FakeTensorMode(allow_non_fake_inputs=False))
        self._stack.enter_context(torch.autograd.set_multithreading_enabled(False))
        self._stack.enter_context(_Operators(self))
        self._stack.enter_context(_Functions(self))
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()


class _Functions(TorchFunctionMode):
    """Replaces functions that behave differently on a GPU."""

    def __init__(self, gpu: SimulatedGpu) -> None:
        super().__init__()
        self.gpu = gpu

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function is torch.tensor and torch.device(kwargs.get("device") or "cpu").type == DEVICE_TYPE:
            self.gpu.sync("torch.tensor")
            return function(*args, **{**kwargs, "device": "cpu"}).to(kwargs["device"], non_blocking=True)
        if function is F.scaled_dot_product_attention:
            return attention_as_on_cuda(*args, **kwargs)
        return function(*args, **kwargs)


class _Operators(TorchDispatchMode):
    """Records all operators."""

    def __init__(self, gpu: SimulatedGpu) -> None:
        super().__init__()
        self.gpu = gpu

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        gpu, kwargs, name = self.gpu, kwargs or {}, operator.overloadpacket.__name__
        if name in READS and _on_device(args[0]):
            gpu.sync(name)
            if name in ("item", "_local_scalar_dense"):
                return gpu.answer(name, args[0])
            if name == "nonzero":
                number = gpu.answer(name, args[0])
                return torch.empty(number, args[0].dim(), dtype=torch.long, device=args[0].device)
        if name in ("index", "index_put", "index_put_"):
            indices = [index for index in args[1] or [] if index is not None]
            if any(_on_device(index) and index.dtype == torch.bool for index in indices):
                gpu.sync(f"{name} by a mask")
        if name == "repeat_interleave" and "Tensor" in operator._overloadname and kwargs.get("output_size") is None:
            gpu.sync(name)
        if torch.is_inference_mode_enabled() and operator.namespace == "aten" and _is_composite(operator):
            with self:  # outside inference mode, autograd decomposes these first
                return operator.decompose(*args, **kwargs)
        result = operator(*args, **kwargs)
        if name in ("_to_copy", "copy_"):
            source, target = (args[1], args[0]) if name == "copy_" else (args[0], result)
            is_asynchronous = kwargs.get("non_blocking", args[2] if name == "copy_" and len(args) > 2 else False)
            if _on_device(source) != _on_device(target) and not (is_asynchronous and _on_device(target)):
                gpu.sync("copy")
        if name.rstrip("_") not in WITHOUT_KERNEL and any(map(_on_device, tree_leaves((args, kwargs, result)))):
            gpu.launches[name] += 1
        return result


def attention_as_on_cuda(
    q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0, is_causal: bool = False
) -> Tensor:
    """Call the operators that PyTorch selects on compute capability 9 without cuDNN's attention."""
    if attn_mask is None and q.dtype in (torch.float16, torch.bfloat16):
        return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, dropout_p, is_causal)[0]
    if attn_mask is not None:
        mask = attn_mask
        if mask.dtype == torch.bool:
            mask = torch.zeros_like(mask, dtype=q.dtype).masked_fill_(mask.logical_not(), float("-inf"))
        if mask.stride(-1) != 1 or any(stride % 8 for stride in mask.stride()[:-1]):
            length = mask.size(-1)
            mask = F.pad(mask, (0, 8 - length % 8))[..., :length]
        attn_mask = mask.expand(q.size(0), q.size(1), q.size(2), k.size(2))
    with_grad = torch.is_grad_enabled() and any(one.requires_grad for one in (q, k, v))
    efficient = torch.ops.aten._scaled_dot_product_efficient_attention
    return efficient(q, k, v, attn_mask, with_grad, dropout_p, is_causal)[0]


def _is_composite(operator: Any) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), "CompositeImplicitAutograd"))


def _on_device(value: object) -> bool:
    return isinstance(value, Tensor) and value.device.type == DEVICE_TYPE


def _caller() -> str:
    """Return the file and line of the innermost frame in the package."""
    frame = sys._getframe(2)
    while frame is not None and "/mtformer/" not in frame.f_code.co_filename.replace("\\", "/"):
        frame = frame.f_back  # type: ignore[assignment]
    return "a test" if frame is None else f"{frame.f_code.co_filename.split('/mtformer/')[-1]}:{frame.f_lineno}"


def _register() -> None:
    """Register the device in PyTorch; further calls have no effect."""
    if torch._C._get_privateuse1_backend_name() == DEVICE_TYPE:
        return
    _setup_privateuseone_for_python_backend(DEVICE_TYPE)
    _foreach_utils._foreach_supported_types.append(FakeTensor)  # one kernel for a list of tensors, as on CUDA
