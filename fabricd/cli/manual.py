"""Completions and the page of the manual, from a tree of commands. Pure.

Completions are plain words in a shell's own language: no TAB starts a Python process.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

LINKS = "$(command ls /sys/class/net 2>/dev/null)"
"""The interfaces of this host, for a shell."""


@dataclass(frozen=True, slots=True)
class Option:
    """``--name``: its spellings, whether a value follows, and its sentence."""

    names: tuple[str, ...]
    value: str
    help: str


@dataclass(frozen=True, slots=True)
class Node:
    """A command, or a group of commands.

    Attributes:
        words: that lead to it; none: the program.
        help: its sentence.
        epilog: an example.
        arguments: as the usage line has them.
        options: in their order.
        children: of a group.
    """

    words: tuple[str, ...]
    help: str
    epilog: str
    arguments: tuple[str, ...]
    options: tuple[Option, ...]
    children: tuple[Node, ...] = field(default=())

    @property
    def takes_link(self) -> bool:
        """Whether its argument is an interface."""
        return any("LINK" in name or name in ("TARGET", "INTERFACE") for name in self.arguments)


def tree(command: Any, words: tuple[str, ...] = ()) -> Node:  # noqa: ANN401 - Click's, of any version
    """The tree below a command of Click."""
    children = getattr(command, "commands", {})
    parameters = list(getattr(command, "params", ()))
    return Node(
        words,
        " ".join((command.help or "").split()),
        " ".join((getattr(command, "epilog", "") or "").split()),
        tuple(
            (one.metavar or one.name or "").strip("[]").upper()
            for one in parameters
            if one.param_type_name == "argument"
        ),
        tuple(
            Option(
                tuple(one.opts),
                "" if getattr(one, "is_flag", False) else (one.name or "value").upper(),
                " ".join((getattr(one, "help", "") or "").split()),
            )
            for one in parameters
            if one.param_type_name == "option" and one.name != "help"
        ),
        tuple(tree(child, (*words, name)) for name, child in children.items()),
    )


def walk(node: Node) -> Iterator[Node]:
    """The node and all below it."""
    yield node
    for child in node.children:
        yield from walk(child)


def _choices(node: Node) -> list[str]:
    options = [name for option in node.options for name in option.names]
    return [*(child.words[-1] for child in node.children), *options, "--help"]


def bash(program: str, root: Node) -> str:
    """For bash's ``complete``."""
    function = f"_{program.replace('-', '_')}"
    groups = " ".join(" ".join(node.words) for node in walk(root) if node.children and node.words)
    lines = [
        f"# bash completion of {program}, made by: {program} completion bash",
        f"{function}() {{",
        '    local word="${COMP_WORDS[COMP_CWORD]}" last="${COMP_WORDS[COMP_CWORD-1]}"',
        '    local path="${COMP_WORDS[1]}" words=""',
        '    [ "$COMP_CWORD" -eq 1 ] && path=""',
        f'    case " {groups} " in',
        '        *" ${path:-none} "*) [ "$COMP_CWORD" -gt 2 ] && path="$path ${COMP_WORDS[2]}";;',
        "    esac",
        '    case "$last" in',
        f'        --link) words="{LINKS}";;',
        '        --output|-o) words="wide json";;',
        "        *)",
        '            case "$path" in',
    ]
    for node in walk(root):
        links = f" {LINKS}" if node.takes_link else ""
        choices = " ".join(_choices(node))
        lines.append(f'                "{" ".join(node.words)}") words="{choices}{links}";;')
    lines += [
        "            esac;;",
        "    esac",
        '    COMPREPLY=($(compgen -W "$words" -- "$word"))',
        "}",
        f"complete -o default -F {function} {program}",
    ]
    return "\n".join(lines) + "\n"


def zsh(program: str, root: Node) -> str:
    """For zsh: bash's words, by its own `bashcompinit`."""
    return f"#compdef {program}\nautoload -U +X bashcompinit && bashcompinit\n{bash(program, root)}"


def fish(program: str, root: Node) -> str:
    """For fish's ``complete``."""
    lines = [f"# fish completion of {program}, made by: {program} completion fish"]
    for node in walk(root):
        if not node.words:
            where = "__fish_use_subcommand"
        elif node.children:
            below = " ".join(child.words[-1] for child in node.children)
            where = f"__fish_seen_subcommand_from {node.words[-1]}; "
            where += f"and not __fish_seen_subcommand_from {below}"
        else:
            seen = (f"__fish_seen_subcommand_from {word}" for word in node.words)
            where = "; and ".join(seen)
        head = f"complete -c {program} -n '{where}'"
        lines += [
            f"{head} -f -a {child.words[-1]} -d {_quoted(child.help)}" for child in node.children
        ]
        for option in node.options:
            names = " ".join(
                f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}"
                for name in option.names
            )
            lines.append(f"{head} {names}{' -r' if option.value else ''} -d {_quoted(option.help)}")
        if node.takes_link:
            lines.append(f"{head} -f -a '(command ls /sys/class/net)'")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def man(program: str, version: str, root: Node) -> str:
    """A page of the manual, in the macros of `man`."""
    lines = [
        f'.TH {program.upper()} 1 "" "{program} {version}" "fabricd"',
        ".SH NAME", f"{program} \\- ask the fabricd of this host, and tell it what to do",
        ".SH SYNOPSIS", f".B {program}", "[\\fICOMMAND\\fR] [\\fIOPTIONS\\fR]",
        ".SH DESCRIPTION", _roff(root.help),
        "Exit status: 0 done, 1 the daemon (or the file) says no or cannot be reached, 2 wrong",
        "usage. The commands check, doctor and plugin check have their own: 0 ok, 1 warning, 2",
        "critical, 3 unknown.",
        ".SH COMMANDS",
    ]  # fmt: skip
    for node in walk(root):
        if node.children or not node.words:
            continue
        usage = " ".join([*node.words, *node.arguments])
        lines += [f".SS {_roff(usage)}", _roff(node.help)]
        for option in node.options:
            value = f" \\fI{_roff(option.value)}\\fR" if option.value else ""
            names = ", ".join(f"\\fB{_roff(name)}\\fR" for name in option.names)
            lines += [".TP", f"{names}{value}", _roff(option.help)]
        if node.epilog:
            lines += [".PP", _roff(node.epilog)]
    lines += [
        ".SH ENVIRONMENT", ".TP", "\\fBFABRIC_CTL_SOCKET\\fR", "Instead of \\-\\-socket.",
        ".TP", "\\fBFABRIC_RUN_DIR\\fR", "Instead of \\-\\-run\\-dir.",
        ".SH FILES", ".TP", "/run/fabricd/ctl.sock", "The daemon's control socket.",
        ".TP", "/etc/fabricd/fabricd.toml", "Its configuration.",
        ".TP", "/var/lib/fabricd/timeline.db", "The timeline.",
        ".SH SEE ALSO", "fabricd, fabric\\-compute, systemctl(1)",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _roff(text: str) -> str:
    """A text in which nothing is a request or an escape of roff."""
    safe = text.replace("\\", "\\e").replace("-", "\\-")
    safe = "".join(one if one.isascii() else f"\\[u{ord(one):04X}]" for one in safe)
    return f"\\&{safe}" if safe[:1] in (".", "'") else safe
