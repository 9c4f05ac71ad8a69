"""Find the arguments that a shell runs as a script, and the positions in them where a value can be
inserted.

A value is quoted when it is inserted into a script, so that it stays one word. This fails inside
quotes, and if the text is parsed again, for example by ``eval`` or ``ssh``.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

_SHELLS = ("sh", "bash", "rbash", "dash", "zsh", "ksh", "mksh", "ksh93", "ash")
_OTHER_SHELLS = ("fish", "csh", "tcsh", "pwsh", "powershell", "nu", "xonsh", "elvish", "cmd")


class _ShellOptions(NamedTuple):
    """How a command takes the text that it passes to a POSIX shell."""

    scripts: tuple[str, ...]  # options before the text
    operands: int | None = None  # operands before a nested command; None: options may follow any
    values: tuple[str, ...] = ()  # other options whose value is the next argument


_SCRIPT_OPTIONS: Mapping[str, _ShellOptions] = {
    "su": _ShellOptions(("-c", "--command", "--session-command")),
    "runuser": _ShellOptions(("-c", "--command", "--session-command")),
    "script": _ShellOptions(("-c", "--command")),
    "flock": _ShellOptions(
        ("-c", "--command"),
        operands=1,  # the lock file
        values=("-w", "--wait", "--timeout", "-E", "--conflict-exit-code"),
    ),
    "nix-shell": _ShellOptions(("--run", "--command")),
    "sbatch": _ShellOptions(("--wrap",)),
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


class _Interpreter(NamedTuple):
    """The options of an interpreter before its own program."""

    code: tuple[str, ...]  # options that take code in the interpreter's language
    values: tuple[str, ...] = ()  # other options with a value, in the same or the next argument
    last: tuple[str, ...] = ()  # options whose value is the program: no option follows
    attached: str = ""  # letters of options with a value in the same argument only


_INTERPRETERS: Mapping[str, _Interpreter] = {
    "python": _Interpreter(
        ("-c",), values=("-W", "-X", "--check-hash-based-pycs"), last=("-c", "-m")
    ),
    "perl": _Interpreter(("-e", "-E"), values=("-I",), attached="CDFMVimx"),
    "ruby": _Interpreter(("-e",), values=("-C", "-E", "-I", "-r"), attached="Fix"),
    "node": _Interpreter(
        ("-e", "-p", "-pe", "--eval", "--print"),  # `-pe` takes code from the next argument
        values=(
            "-C", "-r", "--conditions", "--env-file", "--experimental-loader", "--import",
            "--input-type", "--loader", "--require", "--title",
        ),
    ),
    "php": _Interpreter(("-r",), values=("-c", "-d", "-z"), last=("-f", "--file")),
    "lua": _Interpreter(("-e",), values=("-l",)),
    "julia": _Interpreter(
        ("-e", "-E", "--eval", "--print"),
        values=(
            "-C", "-H", "-J", "-L", "-p", "-t", "--cpu-target", "--home", "--load",
            "--machine-file", "--procs", "--startup-file", "--sysimage", "--threads",
        ),
        attached="Og",
    ),
    "Rscript": _Interpreter(("-e",), values=("-g",)),
}  # fmt: skip
_COMMENT_BEFORE = " \t\n;|&("  # a # after one of these starts a comment


def scripts_of(command: Sequence[str]) -> set[int]:
    """Return the positions of arguments that a POSIX shell runs as a script."""
    scripts = {position for position, _ in _behind_shells(command, _SHELLS)}
    for index, word in enumerate(command):
        options = _SCRIPT_OPTIONS.get(Path(word).name)
        if options is not None:
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
        if name in _INTERPRETERS:
            for position in _code_positions(command, index, _INTERPRETERS[name]):
                code[position] = name
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


def _behind_options(command: Sequence[str], start: int, options: _ShellOptions) -> Iterator[int]:
    """Yield the positions of the scripts of a command: the argument after an option, or the option
    itself if it is written ``--option=TEXT`` or ``-cTEXT``. Options of a nested command do not
    count.
    """
    operands = 0
    position = start
    while position + 1 < len(command):
        position += 1
        word = command[position]
        following = "".join(command[position + 1 : position + 2])
        # su passes options after -- to the user's shell
        if word == "--" and not following.startswith("-"):
            return
        if not word.startswith("-"):
            operands += 1
            if options.operands is not None and operands > options.operands:
                return
        if word in options.values:
            position += 1
        for option in options.scripts:
            is_long = option.startswith("--")
            is_cluster = not is_long and re.fullmatch(rf"-\w*{option[1]}", word)
            if word == option or is_cluster:
                if position + 1 < len(command):
                    yield position + 1
            elif word.startswith(f"{option}=" if is_long else option):
                yield position


def _code_positions(command: Sequence[str], start: int, interpreter: _Interpreter) -> Iterator[int]:
    """Yield the positions of code among the options of an interpreter, which end before its own
    program: later options are those of the program.
    """
    position = start + 1
    while position < len(command) and re.match("-[^-]|--.", command[position]):
        option, is_attached = _option_with_value(command[position], interpreter)
        has_value = option in (*interpreter.code, *interpreter.values, *interpreter.last)
        position += has_value and not is_attached
        if option in interpreter.code and position < len(command):
            yield position
        if option in interpreter.last:
            return
        position += 1


def _option_with_value(word: str, interpreter: _Interpreter) -> tuple[str, bool]:
    """Return the option of an argument that may take a value, and whether its value is in the same
    argument. Of several short options in one argument, only the last one may.
    """
    if word.startswith("--"):
        name, separator, _ = word.partition("=")
        return name, bool(separator)
    if word in interpreter.code:
        return word, False
    for place, letter in enumerate(word[1:], start=2):
        option = f"-{letter}"
        if letter in interpreter.attached:
            return option, True
        if option in (*interpreter.code, *interpreter.values, *interpreter.last):
            return option, place < len(word)
    return word, False
