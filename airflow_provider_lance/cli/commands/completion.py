"""``completion``: scripts that complete commands and options in bash, zsh and fish, made from the parser itself."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from airflow_provider_lance.cli.arguments import add_command

if TYPE_CHECKING:
    from airflow_provider_lance.cli.arguments import Subparsers

#: The words that may follow a path of commands such as ``/jobs/list``, each with its help.
Words = dict[str, list[tuple[str, str]]]

_BASH = """\
_airflow_lance() {
    local at="" word words=""
    for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
        case "$at/$word" in %(paths)s) at="$at/$word" ;; esac
    done
    case "$at" in
%(cases)s
    esac
    COMPREPLY=($(compgen -W "$words" -- "${COMP_WORDS[COMP_CWORD]}"))
}
complete -o default -F _airflow_lance airflow-lance
"""
_ZSH = """\
#compdef airflow-lance
_airflow_lance() {
    local at="" word
    local -a candidates
    for word in "${words[@]:1:CURRENT-2}"; do
        case "$at/$word" in %(paths)s) at="$at/$word" ;; esac
    done
    case "$at" in
%(cases)s
    esac
    _describe 'airflow-lance' candidates || _files
}
compdef _airflow_lance airflow-lance
"""
_FISH = """\
function __airflow_lance_at
    set -l at ''
    for word in (commandline -opc)[2..-1]
        switch "$at/$word"
            case %(paths)s
                set at "$at/$word"
        end
    end
    test "$at" = "$argv[1]"
end
%(cases)s
"""


def add_commands(commands: Subparsers) -> None:
    completion = add_command(
        commands,
        "completion",
        _completion,
        help="print a script that completes commands and options in a shell",
        example="airflow-lance completion bash > ~/.local/share/bash-completion/completions/airflow-lance",
    )
    completion.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell that reads the script")


def _completion(options: argparse.Namespace) -> None:
    from airflow_provider_lance.cli.main import make_parser

    words: Words = {}
    _collect(make_parser(), "", words)
    print({"bash": _bash, "zsh": _zsh, "fish": _fish}[options.shell](words), end="")


def _collect(parser: argparse.ArgumentParser, path: str, words: Words) -> None:
    """Gather the commands, options and choices below a parser."""
    words[path] = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {pseudo.dest: pseudo.help or "" for pseudo in action._choices_actions}
            for name, child in action.choices.items():
                words[path].append((name, helps.get(name, "")))
                _collect(child, f"{path}/{name}", words)
        elif action.option_strings:
            words[path].append((action.option_strings[-1], (action.help or "").partition(" (default")[0]))
        else:
            words[path] += [(str(choice), action.help or "") for choice in action.choices or ()]


def _paths(words: Words, separator: str) -> str:
    return separator.join(path for path in words if path)


def _bash(words: Words) -> str:
    cases = [f'    "{path}") words="{" ".join(word for word, _ in found)}" ;;' for path, found in words.items()]
    return _BASH % {"paths": _paths(words, "|"), "cases": "\n".join(f"    {case}" for case in cases)}


def _zsh(words: Words) -> str:
    cases = [
        f'        "{path}") candidates=({" ".join(_quoted(f"{word}:{help}") for word, help in found)}) ;;'
        for path, found in words.items()
    ]
    return _ZSH % {"paths": _paths(words, "|"), "cases": "\n".join(cases)}


def _fish(words: Words) -> str:
    return _FISH % {"paths": _paths(words, " "), "cases": "\n".join(_fish_lines(words))}


def _fish_lines(words: Words) -> Iterator[str]:
    for path, found in words.items():
        for word, help in found:
            # In fish a long option is a property of the command; any other word is an argument of it.
            kind = f"-l {word[2:]}" if word.startswith("--") else f"-a {word}" if word[0] != "-" else f"-s {word[1:]}"
            yield f"complete -c airflow-lance -n '__airflow_lance_at \"{path}\"' {kind} -d {_quoted(help)}"


def _quoted(text: str) -> str:
    """In single quotes, for all three shells; a text with an apostrophe gets a typographic one."""
    return "'" + text.replace("'", "’").replace("\\", "") + "'"
