import subprocess
import sys


def loaded_after(script: str) -> set[str]:
    """Which of some heavy packages a fresh process has imported after a script."""
    probe = (
        "import sys; print(*{'sklearn', 'scipy', 'pandas', 'mlflow', 'datasets', 'plotly'} & sys.modules.keys())"
    )
    command = [sys.executable, "-c", f"{script}\n{probe}"]
    return set(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())


LEAN = "from trainer.lean_imports import import_transformers; import_transformers()"


def test_a_trainer_imports_nothing_it_does_not_use() -> None:
    assert loaded_after(f"{LEAN}; import trainer.loop") == set()


def test_hidden_packages_can_be_imported_afterwards() -> None:
    found = loaded_after(
        f"{LEAN}; import trainer.loop; from sklearn.metrics import roc_curve; import scipy.optimize"
    )
    assert {"sklearn", "scipy"} <= found


def test_packages_that_are_imported_already_stay() -> None:
    check = "import sys; assert sys.modules['scipy'] is scipy"
    assert "scipy" in loaded_after(f"import scipy; {LEAN}; {check}")
