import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from rl_system.executor import products
from rl_system.executor.gradients import gradient_buffers
from rl_system.executor.linears import fast_linears
from rl_system.executor.products import add_product, fastest_library, pieces, product, uses_onednn

sizes = st.integers(1, 40)


@pytest.fixture(params=["blas", "onednn"])
def library(request, monkeypatch):
    if request.param == "onednn" and not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        pytest.skip("this build of torch has no oneDNN")
    monkeypatch.setattr(products, "_chosen", request.param)
    return request.param


def _matrix(rows: int, columns: int, transposed: bool = False) -> torch.Tensor:
    return torch.randn(columns, rows).T if transposed else torch.randn(rows, columns)


@settings(max_examples=60, deadline=None)
@given(rows=st.integers(0, 700), inner=sizes, out=sizes, strided=st.tuples(*[st.booleans()] * 2), more=st.booleans())
def test_a_product_is_that_of_float64(rows, inner, out, strided, more):
    x, weight = _matrix(rows, inner, strided[0]), _matrix(out, inner, strided[1])
    residual = torch.randn(rows, out) if more else None
    exact = x.double() @ weight.double().T + (residual.double() if more else 0)
    before = products._chosen
    try:
        for name in ("blas", "onednn"):
            products.choose_library(name)
            torch.testing.assert_close(product(x, weight, residual).double(), exact, rtol=2e-6, atol=2e-5)
    finally:
        products._chosen = before


@pytest.mark.parametrize("rows", [0, 1, 63, 64, 65, 256, 300, 1000])
def test_a_product_of_gradients_is_added_to_what_is_there(library, rows):
    grad, inputs, total = torch.randn(rows, 24), torch.randn(rows, 40), torch.randn(24, 40)
    exact = total.double() + grad.double().T @ inputs.double()
    add_product(total, grad, inputs)
    torch.testing.assert_close(total.double(), exact, rtol=2e-6, atol=2e-4)


def test_products_of_other_dtypes_stay_with_torch(library):
    assert uses_onednn(torch.ones(1)) == (library == "onednn")
    assert not uses_onednn(torch.ones(1, dtype=torch.float64))
    assert not uses_onednn(torch.ones(1, dtype=torch.bfloat16))
    x, weight = torch.randn(70, 8, dtype=torch.float64), torch.randn(4, 8, dtype=torch.float64)
    assert torch.equal(product(x, weight), torch.mm(x, weight.T))


@pytest.mark.parametrize("rows", [0, 1, 64, 100, 256, 257, 320, 1000])
@pytest.mark.parametrize("longest", [50, 256, 1024])
def test_pieces_cover_the_rows_once_in_order(rows, longest):
    cut = pieces(rows, longest)
    assert [row for each in cut for row in range(each.start, each.stop)] == list(range(rows))
    assert cut and all(each.stop - each.start <= longest for each in cut)


@pytest.mark.parametrize("longest", [64, 256, 1024])
def test_of_pieces_only_the_last_is_no_multiple_of_a_step(longest):
    for rows in range(1, 1100, 13):
        assert all((each.stop - each.start) % products.STEP == 0 for each in pieces(rows, longest)[:-1])
        last = pieces(rows, longest)[-1]
        assert (last.stop - last.start) % products.STEP == rows % products.STEP


@pytest.mark.parametrize(
    ("vendor", "capability", "expected"),
    [
        ("AuthenticAMD", "AVX512", "onednn"),
        ("GenuineIntel", "AVX512", "blas"),
        ("AuthenticAMD", "AVX2", "blas"),
        ("", "DEFAULT", "blas"),
    ],
)
def test_the_library_is_chosen_by_the_processor(monkeypatch, vendor, capability, expected):
    monkeypatch.setattr(products, "_vendor", lambda: vendor)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    assert fastest_library.__wrapped__() == expected


def test_fast_linears_give_the_outputs_and_gradients_of_linear_layers(library):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(24, 40), nn.SiLU(), nn.Linear(40, 8, bias=False))
    x = torch.randn(1, 130, 24, requires_grad=True)
    grad = torch.randn(1, 130, 8)

    def run() -> list[torch.Tensor]:
        module.zero_grad()
        x.grad = None
        y = module(x)
        y.backward(grad)
        return [y.detach(), x.grad, *(each.grad.clone() for each in module.parameters())]

    expected = run()
    with fast_linears(module, gradient_buffers(module)):
        replaced = "forward" in vars(module[0])
        actual = run()
    assert replaced == (library == "onednn")
    assert "forward" not in vars(module[0])
    torch.testing.assert_close(actual, expected, rtol=2e-6, atol=2e-4)
