"""Store results as a gzipped JSON file, which is saved as an artifact of the sweep's MLflow run."""

import gzip
import io
import json
from dataclasses import asdict

from pydantic import TypeAdapter

from dashboards.results import Results
from dashboards.sources.content import MAX_BYTES, decompressed
from loptune.errors import StorageError

RESULTS_FILE = "results.json.gz"


def pack(results: Results) -> bytes:
    """Serialize results."""
    return gzip.compress(json.dumps(asdict(results)).encode(), 6, mtime=0)


def unpack(content: bytes, where: str) -> Results:
    """Return the results that `pack` wrote.

    Raises:
        StorageError: the content is not a results file.
    """
    try:
        text = decompressed(io.BytesIO(content), MAX_BYTES + 1)
        if len(text) > MAX_BYTES:
            raise ValueError(f"more than {MAX_BYTES >> 20} MiB")
        return TypeAdapter(Results).validate_python(json.loads(text))
    except Exception as error:  # parsers may raise any exception for damaged or hostile files
        raise StorageError(
            f"{where} does not contain the results of a sweep",
            where,
            "run `sweep report NAME` for that sweep to upload them again",
            code="no-results-file",
        ) from error
