"""Quotes untrusted text for bash, for a line of `#SBATCH` or for a list of mounts, or refuses it."""

import re
import shlex

_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./-]+")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OPTION = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


def quote(text: str) -> str:
    """One word of bash that is this text, byte for byte, on one line."""
    _require_utf8(text)
    if "\0" in text:
        raise ValueError(f"{text!r} contains a zero byte, which no program accepts")
    if text.isprintable():
        return shlex.quote(text)
    # Line breaks, and letters that turn the direction of reading, would show something else than what is run.
    return f"$'{''.join(map(_escape, text))}'"


def directive(name: str, value: str | None = None) -> str:
    """One line `#SBATCH --name=value`, quoted as sbatch reads it: in double quotes, `\\` before what would end them."""
    option_name(name)
    if value is None:
        return f"#SBATCH --{name}"
    _require_utf8(value)
    if not value.isprintable():  # a newline would begin a line of its own, which sbatch may read as another option
        raise ValueError(
            f"{name}: {value!r} contains a line break or a control character, which Slurm options must not contain"
        )
    if _PLAIN.fullmatch(value):
        return f"#SBATCH --{name}={value}"
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'#SBATCH --{name}="{escaped}"'


def remark(text: str) -> str:
    """A comment of one line: what would end it stands as `?`."""
    return "".join(character if character.isprintable() else "?" for character in text)


def variable(name: str) -> str:
    """The name of a variable, as it is."""
    if not _VARIABLE.fullmatch(name):
        raise ValueError(f"{name!r} is not a variable name: use letters, digits and _, and begin with no digit")
    return name


def option_name(name: str) -> str:
    """The long name of an option of Slurm's, as it is."""
    if not _OPTION.fullmatch(name):
        raise ValueError(f"{name!r} is not a Slurm option; write the long name without its dashes")
    return name


def in_bind(path: str) -> str:
    """A path for a list of mounts, as it is."""
    # enroot reads mounts from a shell script that pyxis writes, in double quotes: `$` and backticks would be run.
    if not path.startswith("/") or not path.isprintable() or set(path) & set(':,"$`\\'):
        raise ValueError(
            f'{path!r} cannot be mounted: give an absolute path without any of the characters : , " $ ` \\'
        )
    return path


def _escape(character: str) -> str:
    if character.isprintable() and character not in "\\'":
        return character
    return "".join(f"\\{byte:03o}" for byte in character.encode())


def _require_utf8(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{text!r} cannot be encoded as UTF-8") from error
