"""What the machine offers: device, precision, versions, signals."""

import logging
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import cast

import torch
from torch import nn

import bilateral
from bilateral.data.sources_cache import cache_folder
from bilateral.errors import Interrupted, UserError

TINY = 16 * 16
"""Values of an image (pixels x channels) up to which a CPU gains nothing from more threads."""


def choose_device(name: str | None) -> torch.device:
    """The named device, or the GPU if there is one."""
    if name is None:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"unknown device '{name}'; available: cpu, cuda, cuda:0, ...") from None
    if device.type not in ("cpu", "cuda", "mps"):
        raise UserError(f"{name} cannot be used; available: cpu, cuda, cuda:0, mps, ...")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise UserError("no mps device here (use --device cpu)")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError("no GPU here: torch sees no CUDA device (use --device cpu)")
    if device.type == "cuda":
        # torchrun starts a process for each GPU and tells it which
        index = int(os.environ.get("LOCAL_RANK", "0")) if device.index is None else device.index
        if index >= torch.cuda.device_count():
            count = torch.cuda.device_count()
            raise UserError(f"no cuda:{index} here: torch sees {count} CUDA devices")
        device = torch.device("cuda", index)
        torch.cuda.set_device(device)  # streams, graphs and pinned memory go by the current one
    return device


def has_bfloat16(device: torch.device) -> bool:
    """Whether bfloat16 pays off on this device."""
    return device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)


def trains_in_bfloat16(precision: str, device: torch.device, values: int) -> bool:
    """Whether a run of this precision computes in bfloat16 on images of `values` values.

    `auto` does where it pays off: on a GPU that has it, and on a CPU with instructions for it,
    except for tiny images. Searches of an evaluation on a CPU stay in float32.
    """
    if precision != "auto":
        return precision == "bfloat16"
    on_cpu = device.type == "cpu" and values > TINY
    return has_bfloat16(device) or (on_cpu and cpu_multiplies_bfloat16())


def cpu_multiplies_bfloat16() -> bool:
    """Whether the CPU has instructions for it; without them it is slower than float32.

    torch reports them since 2.11. Measured on two cores of an AMD EPYC: `results/bench`.
    """
    known: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    return any(known.get(name) is True for name in ("avx512_bf16", "amx_bf16"))


def autocast(device: torch.device, enabled: bool) -> torch.autocast:
    """bfloat16 inside, if enabled; weights and losses stay float32."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=enabled)


def limit_threads(device: torch.device, values: int) -> None:
    """Use one thread for tiny images on the CPU: an 8x8 digit leaves nothing to split.

    Measured on two cores busy with other work (`bilateral train digits-r-mc-la`, 12 and 15 epochs):
    3,800 to 3,900 images a second with one thread, 50 to 710 with two.
    """
    if device.type == "cpu" and values <= TINY:
        torch.set_num_threads(1)


def place(model: nn.Module, device: torch.device, channels_last: bool | None = None) -> nn.Module:
    """The model on the device; channels-last by default on a GPU, where it is faster."""
    model = model.to(device)
    if device.type == "cuda" if channels_last is None else channels_last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model


def compiled(module: nn.Module, dynamic: bool) -> nn.Module:
    """The compiled module; the compiler's output is kept in the user's cache for the next start.

    torch's own place for it, below /tmp, is empty after every reboot.
    """
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_folder() / "compiled"))
    # torch 2.11 warns hundreds of times, harmlessly, about a bound that it cannot compute.
    logging.getLogger("torch.utils._sympy.interp").setLevel(logging.ERROR)
    return cast(nn.Module, torch.compile(module, dynamic=dynamic))


def synchronise(device: torch.device) -> None:
    """Wait until the device has finished its work, so that a clock can be read."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextmanager
def plain_cudnn() -> Iterator[None]:
    """No search for the fastest algorithm: it repeats for each size as batches shrink."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


@contextmanager
def exact_float32() -> Iterator[None]:
    """float32 products without TF32, whatever the global settings are.

    cuDNN's search for the fastest algorithm is off too: evaluation batches shrink as images break,
    and each new size would be searched again.
    """
    matmul = torch.backends.cuda.matmul.allow_tf32
    cudnn = torch.backends.cudnn
    before = (cudnn.allow_tf32, cudnn.benchmark)
    torch.backends.cuda.matmul.allow_tf32 = False
    cudnn.allow_tf32, cudnn.benchmark = False, False
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = matmul
        cudnn.allow_tf32, cudnn.benchmark = before


def versions(device: torch.device) -> dict[str, str]:
    """Package, torch and device, for every file that holds a measurement."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return {"bilateral": bilateral.__version__, "torch": torch.__version__, "device": name}


def commit() -> str:
    """The commit of the running code, if it runs from its repository; else the version.

    An environment inside a user's own repository is not part of that repository's commit.
    """
    here = Path(__file__)
    git = ["git", "-C", str(here.parent)]
    try:
        tracked = _said([*git, "ls-files", here.name])
        return _said([*git, "rev-parse", "--short", "HEAD"]) if tracked else _version()
    except (OSError, subprocess.CalledProcessError):  # no git here, or no repository
        return _version()


def _said(words: list[str]) -> str:
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


def _version() -> str:
    return f"version {bilateral.__version__}"


AGAIN_SECONDS = 5.0
"""Seconds after which an exception that got lost is raised again."""


class StopRequest:
    """Ctrl-C and SIGTERM as a flag that the work checks between steps.

    The first signal sets it; a second one raises KeyboardInterrupt at once. If a step may take
    minutes, `patience` is how many seconds it gets before Interrupted ends it.
    """

    def __init__(self, patience: float | None = None) -> None:
        self.number: int | None = None
        self.patience = patience

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Handle the signals inside; restore the handlers outside."""

        def asked(number: int, frame: FrameType | None) -> None:
            if self.number is not None:
                raise KeyboardInterrupt
            self.number = number
            # Not by print: the signal may have interrupted one, and a closed standard error would
            # end the work at once.
            when = "after this step"
            if self.patience is not None:
                when = f"after this batch, in {self.patience:g} seconds at the latest"
                signal.setitimer(signal.ITIMER_REAL, self.patience, AGAIN_SECONDS)
            with suppress(OSError):
                os.write(2, f"stopping {when}; a second signal stops at once\n".encode())

        late: list[int] = []

        def too_long(number: int, frame: FrameType | None) -> None:
            late.append(self.number or signal.SIGINT)
            raise Interrupted(late[0])

        handlers = {signal.SIGINT: asked, signal.SIGTERM: asked}
        if self.patience is not None:
            handlers[signal.SIGALRM] = too_long
        timer = signal.getitimer(signal.ITIMER_REAL)
        before = {number: signal.signal(number, new) for number, new in handlers.items()}
        try:
            yield
        except Exception as error:
            if late:  # other code may have turned it into another exception
                raise Interrupted(late[0]) from error
            raise
        finally:
            if self.patience is not None and self.number is not None:
                signal.setitimer(signal.ITIMER_REAL, *timer)
            for number, handler in before.items():
                signal.signal(number, handler)
