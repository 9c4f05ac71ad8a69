import ast

from tests.paths import ROOT


def test_it_imports_nothing_of_the_project():
    # Every process of a server imports it, in an environment that may not have what a trainer
    # needs.
    source = (ROOT / "trainer/rollouts/vllm/receiver.py").read_text()
    packages = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            packages |= {alias.name.partition(".")[0] for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            packages.add(node.module.partition(".")[0])
    assert packages == {"dataclasses", "functools", "typing", "safetensors", "vllm"}
