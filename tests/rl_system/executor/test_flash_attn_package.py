"""What becomes of a flash-attn that is there and cannot be used. Packages are made as they occur, in a folder of their own."""

import importlib
import logging
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from rl_system.executor.attention import cuda, flash_attn_package
from rl_system.executor.attention.cuda import FlashAttnKernel, TorchFlashKernel, describe_cuda_kernels, kernel_for_cuda
from rl_system.executor.attention.flash_attn_package import Unusable, check_interface
from rl_system.executor.attention.kernels import ReferenceKernel
from tests.rl_system.executor.test_attention import FlashAttnInterface

CPU = torch.device("cpu")
FORWARD = "def _flash_attn_varlen_forward(q, k, v, {offsets}, dropout_p, softmax_scale, causal, window_size_left=-1): ..."
BACKWARD = (
    "def _flash_attn_varlen_backward(dout, q, k, v, out, softmax_lse, dq, dk, dv, {offsets}, dropout_p, softmax_scale,"
    " causal, {window}, softcap, alibi_slopes, deterministic, rng_state=None): ..."
)
OFFSETS = "cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k"


def interface(window: str = "window_size_left, window_size_right") -> str:
    return "\n".join(text.format(offsets=OFFSETS, window=window) for text in (FORWARD, BACKWARD))


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Makes a package `flash_attn` of the given files that this process finds before any other."""

    def make(files: dict[str, str]) -> None:
        for name, text in files.items():
            path = tmp_path / "flash_attn" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        importlib.invalidate_caches()

    def forget() -> None:
        for name in [name for name in sys.modules if name.split(".")[0] == "flash_attn"]:
            del sys.modules[name]
        kernel_for_cuda.cache_clear()
        flash_attn_package.distribution.cache_clear()

    monkeypatch.syspath_prepend(tmp_path)
    forget()
    yield make
    forget()


BROKEN = {
    "an undefined symbol": (
        {"__init__.py": "raise ImportError('flash_attn_2_cuda.so: undefined symbol: _ZN3c105ErrorC2E')"},
        "does not import: ImportError: flash_attn_2_cuda.so: undefined symbol: _ZN3c105ErrorC2E",
    ),
    "a torch that it was not made for": (
        {
            "__init__.py": "from flash_attn import flash_attn_interface",
            "flash_attn_interface.py": "import torch\ntorch.library.gone",
        },
        "does not import: AttributeError: module 'torch.library' has no attribute 'gone'",
    ),
    "another distribution's namespace": (
        {"cute/__init__.py": "def flash_attn_func(): ..."},
        "does not import: ModuleNotFoundError: No module named 'flash_attn.flash_attn_interface'",
    ),
    "other functions": (
        {"__init__.py": "", "flash_attn_interface.py": "def flash_attn_varlen_func(): ..."},
        "has no _flash_attn_varlen_forward; release 2.8 has",
    ),
    "an older release": (
        {"__init__.py": "", "flash_attn_interface.py": interface("window_size")},
        "has another _flash_attn_varlen_backward than release 2.8: missing a required argument: 'window_size'",
    ),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_flash_attn_falls_back_to_torchs_kernels_with_a_warning_that_names_the_reason(package, caplog, kind):
    files, reason = BROKEN[kind]
    package(files)
    with caplog.at_level(logging.WARNING):
        assert isinstance(kernel_for_cuda(torch.bfloat16, CPU), TorchFlashKernel)
    (warning,) = caplog.messages
    assert reason in warning and warning.endswith("torch's own flash attention serves")
    assert reason in describe_cuda_kernels()


def test_without_flash_attn_torchs_kernels_serve_without_a_warning(package, caplog, monkeypatch):
    monkeypatch.setattr(flash_attn_package.importlib.util, "find_spec", lambda name: None)
    assert isinstance(kernel_for_cuda(torch.float16, CPU), TorchFlashKernel) and not caplog.messages
    assert describe_cuda_kernels() == "torch's own flash attention (flash-attn is not installed)"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_flash_attn_that_does_what_it_says_is_used(package, monkeypatch, caplog, dtype):
    package({"__init__.py": "", "flash_attn_interface.py": interface()})
    assert describe_cuda_kernels() == "flash_attn"
    monkeypatch.setattr(cuda, "find_interface", HalfPrecision)
    assert isinstance(kernel_for_cuda(dtype, CPU), FlashAttnKernel) and not caplog.messages


def test_other_precisions_go_to_the_written_out_kernel(package):
    package(BROKEN["an undefined symbol"][0])
    assert isinstance(kernel_for_cuda(torch.float64, CPU), ReferenceKernel)


def test_operators_made_by_torchs_own_wrapper_are_judged_by_what_they_wrap():
    class Interface:
        @torch.library.custom_op("rl_system_test::varlen_forward", mutates_args=())
        def _flash_attn_varlen_forward(q: torch.Tensor, window_size_left: int) -> torch.Tensor:
            return q.clone()

    with pytest.raises(Unusable, match="has another _flash_attn_varlen_forward than release 2.8"):
        check_interface(Interface)


class HalfPrecision(FlashAttnInterface):
    """Computes in float32 and rounds, as the compiled one does; log-sum-exps stay float32."""

    def _flash_attn_varlen_forward(self, q, k, v, **more: Any) -> Any:
        out, *others = super()._flash_attn_varlen_forward(q.float(), k.float(), v.float(), **more)
        return out.to(q.dtype), *others

    def _flash_attn_varlen_backward(self, *tensors: torch.Tensor, **more: Any) -> None:
        assert tensors[5].dtype == torch.float32
        given = [x.float() for x in tensors]
        super()._flash_attn_varlen_backward(*given, **more)
        for place, grad in zip(tensors[6:], given[6:], strict=True):
            place.copy_(grad)


class Wrong(HalfPrecision):
    """Gives three times the gradient of v."""

    def _flash_attn_varlen_backward(self, *tensors: torch.Tensor, **more: Any) -> None:
        super()._flash_attn_varlen_backward(*tensors, **more)
        tensors[-1].mul_(3)


class NotForThisDevice(FlashAttnInterface):
    def _flash_attn_varlen_forward(self, *arguments: Any, **more: Any) -> Any:
        raise RuntimeError("CUDA error: no kernel image is available for execution on the device\nCompile with …")


@pytest.mark.parametrize(
    ("broken", "reason"), [(Wrong, "is wrong by"), (NotForThisDevice, "fails on cpu: RuntimeError: CUDA error: no kernel")]
)
def test_a_flash_attn_that_computes_something_else_on_the_device_is_not_used(package, monkeypatch, caplog, broken, reason):
    monkeypatch.setattr(cuda, "find_interface", broken)
    assert isinstance(kernel_for_cuda(torch.bfloat16, CPU), TorchFlashKernel)
    (warning,) = caplog.messages
    assert reason in warning
