from loptune.terminal.table import print_table


def test_the_first_column_is_kept_and_others_wrap_between_words(capsys):
    print_table(["key", "meaning"], [["k" * 60, "word " * 20], ["b", 2]])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    assert lines[0].split() == ["key", "meaning"]
    assert lines[1].startswith("k" * 60) and not lines[2].startswith("k")
    assert " ".join(line[60:].strip() for line in lines[1:-1]).split() == ["word"] * 20
    assert lines[-1].split() == ["b", "2"]


def test_what_would_command_the_terminal_and_markup_are_shown_as_they_are(capsys):
    print_table([""], [["[red]x[/red]\x1b[2J"]])
    assert capsys.readouterr().out.strip() == r"[red]x[/red]\x1b[2J"
