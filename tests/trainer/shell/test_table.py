from trainer.shell.table import print_columns


def test_what_would_command_the_terminal_and_markup_are_shown_as_they_are(capsys):
    print_columns([{"a": "[red]x[/red]\x1b[2J"}])
    assert capsys.readouterr().out.splitlines()[1].strip() == r"[red]x[/red]\x1b[2J"
