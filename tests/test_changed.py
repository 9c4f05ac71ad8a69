from pathlib import Path

import pytest

from tests.changed import DOCS, paths_of_tests


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (["trainer/rollouts/vllm/http.py"], ["tests/trainer/rollouts/vllm"]),
        (["trainer/loop.py", "trainer/rollouts/collect.py"], ["tests/trainer"]),
        (["loptune/terminal/table.py", "docs/index.md"], ["tests/loptune/terminal"]),
        (["tests/test_docs.py", "tests/paths.py"], ["tests/test_docs.py"]),
        (["README.md"], []),
    ],
)
def test_changed_files_belong_to_the_paths_of_tests_their_folder(files, expected):
    assert paths_of_tests(map(Path, files)) == [*expected, *DOCS]
