"""Find the arguments that a shell runs as a script, and the positions in them where a value can be
inserted.

A value is quoted when it is inserted into a script, so that it stays one word. This fails inside
quotes, and if the text is parsed again, for example by ``eval`` or ``ssh``.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

_SHELLS = ("sh", "bash", "rbash", "dash", "zsh", "ksh", "mksh", "ksh93", "ash")
_OTHER_SHELLS = ("fish", "csh", "tcsh", "pwsh", "powershell", "nu", "xonsh", "elvish", "cmd")
# commands that pass an argument to a POSIX shell -> options before the argument
_SCRIPT_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "su": ("-c", "--command", "--session-command"),
    "runuser": ("-c", "--command", "--session-command"),
    "script": ("-c", "--command"),
    "flock": ("-c", "--command"),
    "nix-shell": ("--run", "--command"),
    "sbatch": ("--wrap",),
}
# commands that join their arguments or split them again, by their own rules
_REREADERS = (
    "ssh", "rsh", "mosh", "watch", "parallel", "pdsh", "clush", "hyperfine", "tmux", "screen",
    "entr", "at", "batch", "expect", "make", "gmake", "eval",
)  # fmt: skip
# Commands in a script that parse text again, with or without a path before them. Words such as
# ``eval/accuracy`` and ``--metric=eval`` do not match.
_IN_WORD = r"[\w./=:,@%+-]"
_REREADING = re.compile(
    rf"(?<!{_IN_WORD})(?:/[\w./-]*bin/)?(eval|let|trap|ssh|rsh|mosh|su|runuser|watch|parallel|xargs"
    r"|pdsh|clush|tmux|screen|flock|fish|csh|tcsh|pwsh|env\s+(-\S+\s+)*-\w*S|env\s+.*--split-string"
    rf"|({'|'.join(_SHELLS)})\s+(-\S+\s+)*-\w*c)(?!{_IN_WORD})"
)
# program -> options that take code in the program's own language
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
_COMMENT_BEFORE = " \t\n;|&("  # a # after one of these starts a comment


def scripts_of(command: Sequence[str]) -> set[int]:
    """Return the positions of arguments that a POSIX shell runs as a script."""
    scripts = {position for position, _ in _behind_shells(command, _SHELLS)}
    for index, word in enumerate(command):
        options = _SCRIPT_OPTIONS.get(Path(word).name)
        if options:
            scripts |= set(_behind_options(command, index, options))
    return scripts


def unsafe_words(command: Sequence[str]) -> dict[int, str]:
    """Return position -> command for arguments in which no value is safe."""
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
                    # the text to split is in the option itself or in the next argument
                    unsafe |= dict.fromkeys(range(position, len(command)), "env -S")
                    break
    for index in scripts_of(command):
        again = _REREADING.search(command[index])
        if again:
            unsafe[index] = again[1]
    return unsafe


def code_words(command: Sequence[str]) -> dict[int, str]:
    """Return position -> program for arguments that are code in another language."""
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
    """Yield the positions at which a quoted value would not stay one word. After complicated syntax
    (a substitution inside quotes, a here-document), the rest of the script is treated as quoted.
    """
    state = ""  # the character that ends the quotation
    escapes = False  # whether a backslash escapes in this state
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
    """Yield the position of each script after ``sh -c``, and the shell."""
    for index, word in enumerate(command):
        if Path(word).name not in shells:
            continue
        reads_script = False
        position = index + 1
        while position < len(command) and command[position][:1] in ("-", "+", "/"):
            option = command[position]
            if option.startswith("/") and option.lower() not in ("/c", "/k"):  # an option of cmd
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
                position += option.lower().count(
                    "o"
                )  # each o takes an argument, as in `-o pipefail`
        if reads_script and position < len(command):
            yield position, Path(word).name


def _behind_options(command: Sequence[str], start: int, options: Sequence[str]) -> Iterator[int]:
    """Yield the positions of the values of some options: the next argument, or the option itself if
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
