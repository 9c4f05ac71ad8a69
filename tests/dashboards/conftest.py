import pytest

from tests.dashboards.synthetic import write_sweep


@pytest.fixture(scope="session")
def demo_uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_sweep(tmp_path_factory.mktemp("sweep"))
