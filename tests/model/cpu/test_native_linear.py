"""Linear layers, against sums of more digits."""

from __future__ import annotations

import ctypes
import itertools
import os
import subprocess
import sys
from contextlib import suppress

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch import nn
from wavepp_worker.model.cpu import native_linear
from wavepp_worker.model.cpu.elementwise import silu_times
from wavepp_worker.model.cpu.native_library import (
    computes_on,
    has_amx,
    library,
    multiplies_bfloat16,
    reads_packed_weights,
)
from wavepp_worker.model.cpu.native_linear import (
    FEWER_TOKENS,
    MOST_FEW,
    NativeLinear,
    PackedLinear,
    gated_pair,
    gemm_min_tokens,
    make_native,
    most_tokens,
    takes_many,
)

from tests.support.torch_threads import in_threads

needs_kernel = pytest.mark.skipif(
    not computes_on(torch.bfloat16, torch.device("cpu")),
    reason="no compiler at installation, or a CPU without AVX2",
)


@needs_kernel
@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    tokens=st.integers(1, MOST_FEW + 1) | st.integers(MOST_FEW + 1, 700),
    inputs=st.sampled_from([1, 2, 7, 31, 32, 33, 34, 64, 100, 256, 258, 576, 1030, 1536, 2048]),
    outputs=st.sampled_from([4, 8, 12, 16, 32, 48, 64, 80, 1000]),
    bias=st.booleans(),
    threads=st.sampled_from([1, 2, 3, 7]),
    dtype=st.sampled_from([torch.bfloat16, torch.float32]),
)
def test_the_product_is_that_of_a_longer_sum(
    seed: int, tokens: int, inputs: int, outputs: int, bias: bool, threads: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(seed)
    layer = nn.Linear(inputs, outputs, bias).to(dtype)
    x = torch.randn(1, tokens, inputs).to(dtype)
    wanted = nn.functional.linear(
        x.double(), layer.weight.double(), layer.bias.double() if layer.bias is not None else None
    )
    make_native(layer)
    assert isinstance(layer, NativeLinear)
    with torch.inference_mode(), in_threads(threads):
        got = layer(x)
    assert got.shape == wanted.shape
    assert got.dtype is dtype
    near = 0.01 if dtype is torch.bfloat16 else 1e-5
    torch.testing.assert_close(got.double(), wanted, rtol=near, atol=near)


@needs_kernel
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(
    seed=st.integers(0, 2**31),
    tokens=st.integers(1, 300),
    inputs=st.sampled_from([2, 34, 64, 576, 1030, 2048]),
    outputs=st.sampled_from([16, 48, 80, 1040]),
    biases=st.tuples(st.booleans(), st.booleans()),
    threads=st.sampled_from([1, 2, 7]),
    dtype=st.sampled_from([torch.bfloat16, torch.float32]),
)
def test_a_gated_pair_is_bit_for_bit_what_its_parts_are_with_many_tokens(
    seed: int,
    tokens: int,
    inputs: int,
    outputs: int,
    biases: tuple[bool, bool],
    threads: int,
    dtype: torch.dtype,
) -> None:
    torch.manual_seed(seed)
    gate, up = (nn.Linear(inputs, outputs, bias).to(dtype) for bias in biases)
    make_native(nn.ModuleList([gate, up]))
    if not any(gemm_min_tokens(64, 16, each) for each in (torch.bfloat16, torch.float32)) and not has_amx():
        pytest.skip("no kernel here takes many tokens")
    assume(takes_many(gate))
    assert isinstance(gate, NativeLinear)
    assert isinstance(up, NativeLinear)
    x = 3 * torch.randn(1, MOST_FEW + tokens, inputs).to(dtype)
    with torch.inference_mode(), in_threads(threads):
        parts = silu_times(gate(x), up(x))
        assert torch.equal(gated_pair(gate, up, x), parts)
        assert torch.equal(gated_pair(gate, up, x[:, :tokens]), parts[:, :tokens])


@needs_kernel
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("inputs", [96, 1100, 2048])
@pytest.mark.parametrize("outputs", [8, 48])
def test_rows_may_lie_anywhere_and_do_not_change_with_those_beside_them(
    outputs: int, inputs: int, dtype: torch.dtype
) -> None:
    """But where there are fewer than the kernel for many takes, which adds in another order."""
    torch.manual_seed(0)
    fewest = max(1, gemm_min_tokens(inputs, outputs, dtype))
    layer = nn.Linear(inputs, outputs).to(dtype)
    make_native(layer)
    most = min(most_tokens(layer), 300)
    x = torch.randn(most, 2, inputs).to(dtype)[:, 0]
    with torch.inference_mode():
        together = layer(x)
        for threads, count in itertools.product((1, 3), {fewest, min(most, 71)}):
            with in_threads(threads):
                for i in range(0, most - count + 1, 5):
                    assert torch.equal(layer(x[i : i + count]), together[i : i + count])
        assert layer(x[:0]).shape == (0, outputs)


@needs_kernel
@pytest.mark.parametrize(
    ("of_weights", "of_tokens"), [(torch.bfloat16, torch.float32), (torch.float32, torch.bfloat16)]
)
def test_tokens_of_another_dtype_are_never_read_as_if_they_had_this_one(
    of_weights: torch.dtype, of_tokens: torch.dtype
) -> None:
    layer = nn.Linear(32, 8).to(of_weights)
    x = torch.randn(2, 32).to(of_tokens)
    make_native(layer)
    # Refused, as torch refuses it, or right.
    with torch.inference_mode(), suppress(RuntimeError):
        got = layer(x)
        wanted = nn.functional.linear(x.float(), layer.weight.float(), layer.bias.float())
        torch.testing.assert_close(got.float(), wanted, rtol=0.02, atol=0.02)


@needs_kernel
@pytest.mark.parametrize("shape", [(1, 64), (4, 16), ()])
def test_rows_of_another_width_are_refused_as_torch_refuses_them(shape: tuple[int, ...]) -> None:
    layer = nn.Linear(32, 8)
    make_native(layer)
    with torch.inference_mode(), pytest.raises((RuntimeError, IndexError)):
        layer(torch.zeros(shape))


@needs_kernel
def test_tokens_that_are_not_in_memory_are_left_to_torch() -> None:
    layer = nn.Linear(32, 8)
    make_native(layer)
    with torch.inference_mode(), suppress(RuntimeError):
        assert layer(torch.zeros(1, 32, device="meta")).device.type == "meta"


@needs_kernel
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_what_is_no_number_stays_none_and_spoils_no_other_row(dtype: torch.dtype) -> None:
    layer = nn.Linear(40, 8).to(dtype)
    make_native(layer)
    x = torch.randn(7, 40).to(dtype)
    with torch.inference_mode():
        sound = layer(x)
        x[3, 39] = torch.nan
        spoilt = layer(x)
    assert spoilt[3].isnan().all()
    assert torch.equal(spoilt[[0, 1, 2, 4, 5, 6]], sound[[0, 1, 2, 4, 5, 6]])


@needs_kernel
@pytest.mark.parametrize("threads", [1, 2])
def test_the_kernel_takes_the_threads_that_torch_takes(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The product is the same with any number: only its time tells."""
    given: list[int] = []
    monkeypatch.setattr(native_linear, "_linear", lambda: lambda *arguments: given.append(arguments[-2]))
    layer = nn.Linear(32, 8).bfloat16()
    make_native(layer)
    with torch.inference_mode(), in_threads(threads):
        layer(torch.zeros(1, 32, dtype=torch.bfloat16))
    assert given == [threads]


def test_other_layers_stay_as_they_are() -> None:
    class Own(nn.Linear):
        pass

    model = nn.Sequential(nn.Linear(4, 4).half(), nn.Linear(4, 3).bfloat16(), Own(4, 4).bfloat16())
    make_native(model)
    assert [type(layer) for layer in model] == [nn.Linear, nn.Linear, Own]


@needs_kernel
@pytest.mark.parametrize(
    ("dtype", "cpu", "threads", "inputs", "most"),
    [
        (torch.float32, "AVX2", 1, 31, FEWER_TOKENS),
        (torch.float32, "AVX2", 2, 31, MOST_FEW),
        (torch.float32, "AVX2", 1, 32, 5000),
        (torch.float32, "AVX-512", 1, 32, FEWER_TOKENS),
        (torch.float32, "AVX-512", 2, 32, MOST_FEW),
        (torch.float32, "bfloat16", 2, 32, FEWER_TOKENS),
        (torch.bfloat16, "AVX2", 1, 2047, MOST_FEW),
        (torch.bfloat16, "AVX2", 1, 2048, 5000),
        (torch.bfloat16, "AVX-512", 1, 2048, MOST_FEW),
        (torch.bfloat16, "bfloat16", 1, 2047, 8),
        (torch.bfloat16, "bfloat16", 1, 2048, 5000),
        (torch.bfloat16, "AMX", 1, 32, MOST_FEW),
        (torch.bfloat16, "AMX", 1, 2047, FEWER_TOKENS),
        (torch.bfloat16, "AMX", 1, 2048, FEWER_TOKENS),
    ],
)
def test_more_tokens_than_torch_takes_longer_for_are_left_to_it(
    dtype: torch.dtype, cpu: str, threads: int, inputs: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = {"AVX2": 17, "AVX-512": 0, "AMX": 0}.get(cpu, 7 if dtype is torch.bfloat16 else 0)
    fits = inputs % 2 == 0
    monkeypatch.setattr(native_linear, "gemm_min_tokens", lambda *_: many if fits else 0)
    monkeypatch.setattr(native_linear, "multiplies_bfloat16", lambda: cpu not in ("AVX2", "AVX-512"))
    monkeypatch.setattr(native_linear, "torch_has_amx", lambda: cpu == "AMX")
    monkeypatch.setattr(native_linear, "reads_packed_weights", lambda: False)
    layer, taken = nn.Linear(inputs, 16).to(dtype), []
    make_native(layer)
    monkeypatch.setattr(native_linear, "_linear", lambda: lambda *arguments: taken.append(arguments[4]))
    with torch.inference_mode(), in_threads(threads):
        for tokens in (1, most, most + 1):
            layer(torch.zeros(tokens, inputs, dtype=dtype))
    assert taken == ([1, most, most + 1] if takes_many(layer) else [1, most])
    assert takes_many(layer) == (most == 5000)


_GUARDED = """
import ctypes, mmap
import torch
from torch import nn
from wavepp_worker.model.cpu.native_linear import NativeLinear, make_native

def guarded(tensor, at_end):
    size = tensor.numel() * tensor.element_size()
    room = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = mmap.mmap(-1, room + 2 * mmap.PAGESIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for page in (address, address + mmap.PAGESIZE + room):
        assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(page), mmap.PAGESIZE, 0) == 0
    offset = mmap.PAGESIZE + (room - size if at_end else 0)
    there = torch.frombuffer(memory, dtype=tensor.dtype, count=tensor.numel(), offset=offset).view(tensor.shape)
    return there.copy_(tensor)

torch.set_num_threads(2)
for dtype in (torch.bfloat16, torch.float32):
    for inputs, outputs in ((7, 4), (32, 16), (34, 20), (258, 48), (600, 1024), (1026, 16), (2048, 32)):
        for tokens in (1, 2, 5, 6, 7, 9, 16, 17, 33, 64, 65, 80, 150, 300):
            for at_end in (False, True):
                layer = nn.Linear(inputs, outputs).to(dtype).requires_grad_(False)
                make_native(layer)
                assert isinstance(layer, NativeLinear)
                x = torch.randn(tokens, inputs).to(dtype)
                plain = layer(x)
                layer.stored.data, layer.bias.data = (guarded(each, at_end) for each in (layer.stored, layer.bias))
                torch.testing.assert_close(layer(guarded(x, at_end)), plain)
"""


@needs_kernel
def test_it_reads_nothing_beyond_its_tensors() -> None:
    """In a process of its own, as another page would be its end."""
    done = subprocess.run(
        [sys.executable, "-c", _GUARDED], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, f"exit {done.returncode}: {done.stderr[-500:]}"


_SMALL_STACKS = """
import threading
import torch
from torch import nn
from wavepp_worker.model.cpu.native_linear import make_native

torch.set_num_threads(2)
layer = nn.Linear(1024, 64).bfloat16().requires_grad_(False)
make_native(layer)
threading.stack_size(128 * 1024)
thread = threading.Thread(target=layer, args=(torch.zeros(200, 1024).bfloat16(),))
thread.start()
thread.join()
"""


@needs_kernel
def test_threads_with_small_stacks_multiply_many_tokens() -> None:
    """In a process of its own, as a stack that is too small would be its end."""
    done = subprocess.run(
        [sys.executable, "-c", _SMALL_STACKS],
        env={**os.environ, "OMP_STACKSIZE": "64k"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, f"exit {done.returncode}: {done.stderr[-500:]}"


_TEAMS_IN_TURN = """
import resource
import torch
from torch import nn
from wavepp_worker.model.cpu.native_linear import make_native

with torch.inference_mode():
    for dtype in (torch.bfloat16, torch.float32):
        layer = nn.Linear(4096, 1024).to(dtype)
        make_native(layer)
        x = torch.zeros(256, 4096, dtype=dtype)
        for turn in range(40):
            if turn == 10:
                before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            for threads in (5, 2):
                torch.set_num_threads(threads)
                layer(x)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert grown < 64 * 1024, f"{grown} KiB more with {dtype}"
"""


@needs_kernel
def test_threads_leave_no_memory_behind_when_a_team_becomes_smaller() -> None:
    """In a process of its own, whose memory is the kernels' alone. Each thread has 4 MiB of copies, or none."""
    done = subprocess.run(
        [sys.executable, "-c", _TEAMS_IN_TURN], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, f"exit {done.returncode}: {done.stderr[-500:]}"


_COMPUTES = computes_on(torch.bfloat16, torch.device("cpu"))
needs_packing = pytest.mark.skipif(
    not (_COMPUTES and reads_packed_weights()), reason="weights are not packed on this CPU"
)
needs_amx = pytest.mark.skipif(not (_COMPUTES and has_amx()), reason="a CPU without AMX")


@needs_packing
@pytest.mark.parametrize(("inputs", "outputs"), [(32, 16), (96, 48), (576, 80), (4096, 16)])
def test_packed_weights_are_the_same_numbers(inputs: int, outputs: int) -> None:
    layer = nn.Linear(inputs, outputs).bfloat16().requires_grad_(False)
    weight = layer.weight.clone()
    make_native(layer)
    assert isinstance(layer, PackedLinear)
    assert torch.equal(layer.weight, weight)
    assert layer.weight is layer.weight
    assert not torch.equal(layer.stored.view(outputs, inputs), weight)
    assert sum(each.numel() for each in layer.parameters()) == weight.numel() + outputs


@needs_packing
@pytest.mark.parametrize("tokens", [1, 15, 16, 17, 31, 32, 33, 63, 64, 255, 256, 257, 600])
@pytest.mark.parametrize(("inputs", "outputs"), [(32, 16), (256, 768), (288, 528), (2080, 48)])
def test_packed_layers_multiply_any_number_of_tokens(tokens: int, inputs: int, outputs: int) -> None:
    torch.manual_seed(tokens)
    layer = nn.Linear(inputs, outputs).bfloat16().requires_grad_(False)
    x = torch.randn(tokens, inputs).bfloat16()
    wanted = nn.functional.linear(x.double(), layer.weight.double(), layer.bias.double())
    make_native(layer)
    alone = layer(x)
    torch.testing.assert_close(alone.double(), wanted, rtol=0.01, atol=0.01)
    for threads in (2, 3, 8):
        with in_threads(threads):
            assert torch.equal(layer(x), alone), "the same bits from any number of threads"
    assert torch.equal(layer(x[tokens // 2 :]), alone[tokens // 2 :])


class _Product(ctypes.Structure):
    """As in ``product.h``."""

    _fields_ = (
        ("x", ctypes.c_void_p),
        ("tokens", ctypes.c_int64),
        ("inputs", ctypes.c_int64),
        ("outputs", ctypes.c_int64),
        ("y", ctypes.c_void_p),
    )


class _Weights(ctypes.Structure):
    """As in ``product.h``."""

    _fields_ = (("weight", ctypes.c_void_p), ("bias", ctypes.c_void_p))


_WIDENED = "_Z12gemm_widenedRK7ProductItERK7WeightsItEbi"
_GATED_WIDENED = "_Z18gated_gemm_widenedRK7ProductItERK7WeightsItES6_bi"
"""As compilers name them: C++ calls them, and on Intel's CPUs alone."""


@pytest.mark.skipif(
    not (_COMPUTES and multiplies_bfloat16()), reason="no kernels, or a CPU that does not multiply bfloat16"
)
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("tokens", [1, 12, 13, 23, 256, 257, 530])
@pytest.mark.parametrize(
    ("inputs", "outputs", "packed"),
    [(32, 16, True), (288, 528, True), (2080, 48, True), (34, 16, False), (1030, 80, False)],
)
def test_numbers_widened_to_floats_give_the_product_too(
    inputs: int, outputs: int, packed: bool, tokens: int, gated: bool
) -> None:
    """Called by name, as CPUs of other makers would never come there; in more or less than a block, or a slice."""
    torch.manual_seed(tokens)
    layers = [nn.Linear(inputs, outputs).bfloat16().requires_grad_(False) for _ in range(1 + gated)]
    x = torch.randn(tokens, inputs).bfloat16()
    wanted = [nn.functional.linear(x.double(), each.weight.double(), each.bias.double()) for each in layers]
    weights = []
    for layer in layers:
        if packed:
            PackedLinear.pack(layer)
        stored = layer.get_parameter("packed_weight" if packed else "weight")
        weights.append(_Weights(stored.data_ptr(), layer.bias.data_ptr()))
    multiply = getattr(library(), _GATED_WIDENED if gated else _WIDENED)

    def product(threads: int) -> torch.Tensor:
        out = torch.full((tokens, outputs), torch.nan).bfloat16()
        given = _Product(x.data_ptr(), tokens, inputs, outputs, out.data_ptr())
        multiply(*map(ctypes.byref, (given, *weights)), ctypes.c_bool(packed), ctypes.c_int(threads))
        return out

    alone = product(1)
    expected = nn.functional.silu(wanted[0]) * wanted[1] if gated else wanted[0]
    torch.testing.assert_close(alone.double(), expected, rtol=0.02, atol=0.01)
    assert torch.equal(product(3), alone), "the same bits from any number of threads"


@needs_amx
def test_torch_has_amx_of_its_own_before_and_after() -> None:
    """Both set the tiles of the thread, and neither may find the other's."""
    torch.manual_seed(0)
    layer, plain = (nn.Linear(512, 512, False).bfloat16().requires_grad_(False) for _ in range(2))
    x = torch.randn(200, 512).bfloat16()
    own, other = plain.weight.clone(), plain(x)
    make_native(layer)
    first = layer(x)
    for tokens in (200, 7, 40, 200):
        assert torch.equal(nn.functional.linear(x[:tokens], own), plain(x[:tokens]))
        assert torch.equal(layer(x[:tokens]), first[:tokens])
    assert torch.equal(plain(x), other)


@needs_kernel
@pytest.mark.parametrize("small", ["x", "weights"])
@pytest.mark.parametrize(("tokens", "threads"), [(1, 1), (40, 1), (600, 2)])
def test_numbers_below_the_least_of_full_precision_count_as_0_in_products(
    small: str, tokens: int, threads: int
) -> None:
    """As floats they would take a hundred times as long."""
    pair = [nn.Linear(1024, 512, False).bfloat16().requires_grad_(False) for _ in range(2)]
    x = torch.full((tokens, 1024), 1e-39 if small == "x" else 16.0).bfloat16()
    for layer in pair:
        layer.weight.fill_(1e-39 if small == "weights" else 16.0)
        make_native(layer)
    if tokens > most_tokens(pair[0]):
        pytest.skip("torch multiplies so many")
    with in_threads(threads):
        assert not pair[0](x).any()
        assert not gated_pair(pair[0], pair[1], x).any()
    assert torch.tensor(1e-39) * 2 > 0, "the mode of the thread is as before"


@needs_packing
def test_layers_that_share_their_weights_or_do_not_fit_keep_them() -> None:
    embedding, head = nn.Embedding(64, 32), nn.Linear(32, 64, False)
    head.weight = embedding.weight
    model = (
        nn.Sequential(embedding, head, nn.Linear(48, 16), nn.Linear(32, 24)).bfloat16().requires_grad_(False)
    )
    head.weight = embedding.weight
    make_native(model)
    assert [type(layer) for layer in model][1:] == [NativeLinear] * 3
    assert head.weight is embedding.weight


@needs_packing
def test_a_packed_layer_takes_no_other_weights_and_may_be_cast() -> None:
    layer = nn.Linear(32, 16).bfloat16()
    before = layer.state_dict()
    make_native(layer)
    with pytest.raises(RuntimeError, match="packed_weight"):
        layer.load_state_dict(before)
    with pytest.raises(KeyError, match="weight"):
        layer.weight = nn.Parameter(torch.zeros(16, 32))
    x = torch.randn(3, 32)
    with torch.inference_mode():
        wide = layer.float()(x)
    torch.testing.assert_close(
        wide, nn.functional.linear(x, before["weight"].float(), before["bias"].float())
    )
