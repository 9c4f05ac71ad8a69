import pytest

from tests.sweep.spaces import make_spec


@pytest.mark.parametrize(("workers", "gpus", "each"), [(4, 4, 1.0), (1, 0.5, 0.5), (2, 0, 0.0)])
def test_gpus_of_a_rank(workers, gpus, each, tmp_path):
    trainer = {"preset": "base.yaml", "overrides": {"parallel.strategy": "ddp"}}
    resources = {"workers_per_trial": workers, "gpus_per_trial": gpus}
    assert (
        make_spec(tmp_path, resources=resources, trainer=trainer).resources.gpus_per_worker == each
    )


@pytest.mark.parametrize(
    ("written", "grace"), [(None, None), ("none", None), ("asha", 3), ({"asha": None}, 3)]
)
def test_short_forms_of_the_scheduler(written, grace, tmp_path):
    scheduler = make_spec(tmp_path, scheduler=written).scheduler
    assert (scheduler.asha and scheduler.asha.grace_period) == grace
