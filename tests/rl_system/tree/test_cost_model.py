import numpy as np
import pytest

from rl_system.tree import CostModel, ModelShape, Work

TRUE = np.array([2e-4, 3e-8, 5e-2, 7e-5, 1e-5])


@pytest.fixture
def model() -> CostModel:
    return CostModel(ModelShape(layer_parameters=3_000_000, layers=4, attention_width=256, hidden=256, vocabulary=2048))


def random_work(random: np.random.Generator) -> Work:
    tokens = random.integers(500, 20_000)
    scale = (tokens, tokens * random.integers(50, 900), random.integers(1, 60), tokens * 0.3, tokens * 0.7)
    return Work(*(float(each * random.uniform(0.2, 1)) for each in scale))


def seconds(work: Work) -> float:
    return float(TRUE @ [work.tokens, work.pairs, work.passes, work.recomputed, work.targets])


def test_predictions_approach_what_was_measured(model):
    random = np.random.default_rng(0)
    for _ in range(40):
        work = random_work(random)
        model.observe("tree", work, seconds(work) * random.normal(1, 0.02))
    for _ in range(10):
        work = random_work(random)
        assert model.seconds("tree", work) == pytest.approx(seconds(work), rel=0.1)


def test_coefficients_are_never_negative(model):
    random = np.random.default_rng(1)
    for _ in range(30):
        work = random_work(random)
        model.observe("tree", work, 0.01 * random.uniform(0.1, 3))
        assert (model.coefficients("tree") >= 0).all()


def test_one_measurement_scales_the_prior_of_methods_that_were_not_measured(model):
    work = Work(1000, 400_000, 4, 0, 500)
    before = model.seconds("dense", work)
    model.observe("tree", work, 10 * model.seconds("tree", work))
    assert model.seconds("dense", work) == pytest.approx(10 * before, rel=1e-6)


def test_methods_are_learnt_apart(model):
    work = Work(1000, 400_000, 4, 0, 500)
    for _ in range(20):
        model.observe("tree", work, 1.0)
        model.observe("dense", work, 3.0)
    assert model.seconds("tree", work) == pytest.approx(1.0, rel=0.05)
    assert model.seconds("dense", work) == pytest.approx(3.0, rel=0.05)
