"""Words of a command line that a shell reads as its script, and whether a value may be inserted
into them.

A value in a script is quoted when it is put in, so that it stays one word. That fails inside
quotes, and where the text is read a second time, such as behind ``eval`` or ``ssh``.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

_SHELLS = ("sh", "bash", "rbash", "dash", "zsh", "ksh", "mksh", "ksh93", "ash")
_OTHER_SHELLS = ("fish", "csh", "tcsh", "pwsh", "powershell", "nu", "xonsh", "elvish", "cmd")
# commands that hand one argument to a POSIX shell: the options before it
_SCRIPT_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "su": ("-c", "--command", "--session-command"),
    "runuser": ("-c", "--command", "--session-command"),
    "script": ("-c", "--command"),
    "flock": ("-c", "--command"),
    "nix-shell": ("--run", "--command"),
    "sbatch": ("--wrap",),
}
# commands that join all of their arguments, or split one again, by rules of their own
_REREADERS = (
    "ssh", "rsh", "mosh", "watch", "parallel", "pdsh", "clush", "hyperfine", "tmux", "screen",
    "entr", "at", "batch", "expect", "make", "gmake", "eval",
)  # fmt: skip
# Whole words of a script that read text a second time, also with the folder of a program before
# them. ``eval/accuracy`` and ``--metric=eval`` are other words.
_IN_WORD = r"[\w./=:,@%+-]"
_REREADING = re.compile(
    rf"(?<!{_IN_WORD})(?:/[\w./-]*bin/)?(eval|let|trap|ssh|rsh|mosh|su|runuser|watch|parallel|xargs"
    r"|pdsh|clush|tmux|screen|flock|fish|csh|tcsh|pwsh|env\s+(-\S+\s+)*-\w*S|env\s+.*--split-string"
    rf"|({'|'.join(_SHELLS)})\s+(-\S+\s+)*-\w*c)(?!{_IN_WORD})"
)
# -c and -e of these take code of another language
_CODE_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "python": ("-c",),
    "perl": ("-e", "-E"),
    "ruby": ("-e",),
    "node": ("-e", "-p", "--eval", "--print"),
    "php": ("-r",),
    "lua": ("-e",),
    "julia": ("-e", "-E"),
    "Rscript": ("-e",),
}
_COMMENT_BEFORE = " \t\n;|&("  # a # behind one of these begins a comment


def scripts_of(command: Sequence[str]) -> set[int]:
    """Return the positions of words that a POSIX shell reads as its script."""
    scripts = {position for position, _ in _behind_shells(command, _SHELLS)}
    for index, word in enumerate(command):
        options = _SCRIPT_OPTIONS.get(Path(word).name)
        if options:
            scripts |= set(_behind_options(command, index, options))
    return scripts


def unsafe_words(command: Sequence[str]) -> dict[int, str]:
    """Return the positions of words in which no value is safe, with the command that reads each."""
    unsafe = dict(_behind_shells(command, _OTHER_SHELLS))
    for index, word in enumerate(command):
        name = Path(word).name
        behind = range(index + 1, len(command))
        if name in _REREADERS:
            unsafe |= dict.fromkeys(behind, name)
        if name == "env":
            for position in behind:
                if not command[position].startswith("-"):
                    break
                if re.match(r"-\w*S|--split-string", command[position]):
                    # the option's own word, or the one behind it
                    unsafe |= dict.fromkeys(range(position, len(command)), "env -S")
                    break
    for index in scripts_of(command):
        again = _REREADING.search(command[index])
        if again:
            unsafe[index] = again[1]
    return unsafe


def code_words(command: Sequence[str]) -> dict[int, str]:
    """Return the positions of words that are code of another language, each with its program."""
    code = {}
    for index, word in enumerate(command):
        name = re.sub(r"[\d.]+$", "", Path(word).name)
        if name in _CODE_OPTIONS:
            for position in _behind_options(command, index, _CODE_OPTIONS[name]):
                code[position] = name
                break
        if name in ("awk", "gawk", "mawk", "sed", "jq") and index + 1 < len(command):
            code[index + 1] = name
    return code


def quoted(script: str) -> Iterator[int]:
    """Yield the positions at which a quoted value would not stay one word. Syntax that is hard to
    follow (a substitution inside quotes, a here-document) counts as quoted up to the end.
    """
    state = ""  # the character that ends it
    escapes = False  # whether a backslash counts in this state
    index = 0
    while index < len(script):
        character = script[index]
        rest = script[index:]
        if state:
            yield index
        if state == '"' and (rest.startswith("$(") or character == "`"):
            yield from range(index, len(script))
            return
        if character == "\\" and (not state or escapes):
            yield index + 1
            index += 2
            continue
        if state:
            if character == state:
                state = ""
        elif rest.startswith("((") or (rest.startswith("<<") and not rest.startswith("<<<")):
            # arithmetic, or a here-document
            yield from range(index, len(script))
            return
        elif rest.startswith("<<<"):
            index += 2
        elif character in "'\"`":
            state = character
            escapes = character != "'" or script[:index].endswith("$")
        elif character == "#" and (index == 0 or script[index - 1] in _COMMENT_BEFORE):
            state, escapes = "\n", False
        index += 1


def _behind_shells(command: Sequence[str], shells: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Yield the position of each script behind ``sh -c``, and the shell."""
    for index, word in enumerate(command):
        if Path(word).name not in shells:
            continue
        reads_script = False
        position = index + 1
        while position < len(command) and command[position][:1] in ("-", "+", "/"):
            option = command[position]
            if option.startswith("/") and option.lower() not in ("/c", "/k"):  # cmd's
                break
            position += 1
            if option == "--":
                break
            if option.startswith("--"):
                reads_script |= option in ("--command", "--commands")
                position += option in ("--rcfile", "--init-file")
                continue
            reads_script |= option[0] != "+" and "c" in option.lower()
            if shells is _SHELLS:
                position += option.lower().count("o")  # -o pipefail
        if reads_script and position < len(command):
            yield position, Path(word).name


def _behind_options(command: Sequence[str], start: int, options: Sequence[str]) -> Iterator[int]:
    """Yield the positions of the arguments of some options: the next word, or the option's own if
    it is written ``--option=TEXT`` or ``-cTEXT``.
    """
    for position in range(start + 1, len(command)):
        word = command[position]
        for option in options:
            is_long = option.startswith("--")
            is_cluster = not is_long and re.fullmatch(rf"-\w*{option[1]}", word)
            if word == option or is_cluster:
                if position + 1 < len(command):
                    yield position + 1
            elif word.startswith(f"{option}=" if is_long else option):
                yield position
