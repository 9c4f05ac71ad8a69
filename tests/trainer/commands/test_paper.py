from trainer.cli import main


def test_an_unwritable_output_is_refused_before_training(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["diagnose", "tiny_kk", "--output", str(tmp_path / "file")]) == 4
    assert "cannot write there" in capsys.readouterr().err
