import os
from unittest.mock import patch

from sweep.trials.credentials import plain_environment, take_credentials, write_credentials

DRIVER = {
    "MLFLOW_TRACKING_URI": "http://head:5000",
    "MLFLOW_TRACKING_PASSWORD": "one",
    "LOPTUNE_SERVER_TOKEN": "two",
    "MLFLOW_REGISTRY_URI": "http://me:three@head",
    "LOPTUNE_CACHE": "/shared/cache",
    "MLFLOW_AUTH_ADMIN_PASSWORD": "four",
    "MLFLOW_FLASK_SERVER_SECRET_KEY": "five",
    "AWS_SECRET_ACCESS_KEY": "six",
}


def test_credentials_travel_in_a_file_of_their_own(tmp_path):
    path = tmp_path / "credentials.json"
    with patch.dict(os.environ, DRIVER, clear=True):
        assert plain_environment() == {
            name: DRIVER[name] for name in ("MLFLOW_TRACKING_URI", "LOPTUNE_CACHE")
        }
        write_credentials(path)
    assert path.stat().st_mode & 0o777 == 0o600
    with patch.dict(os.environ, {}, clear=True):
        take_credentials(path)
        assert dict(os.environ) == {
            name: DRIVER[name]
            for name in ("MLFLOW_TRACKING_PASSWORD", "LOPTUNE_SERVER_TOKEN", "MLFLOW_REGISTRY_URI")
        }
        os.environ.clear()
        write_credentials(path)
        take_credentials(path)
        assert not os.environ
    assert not path.exists()
