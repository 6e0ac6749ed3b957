"""Recognises files that hold keys, by name and by content: a copy of the code never includes one."""

import codecs
import re
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

from nemo_vfm.core.network.key_shapes import shape, token

#: Patterns for one part of a path, in lower case -> what such a file or folder is.
_PARTS = {
    ".env*": "an environment file", "*.env": "an environment file",
    ".ssh": "a folder of keys", ".gnupg": "a folder of keys", ".aws": "a folder of keys", ".azure": "a folder of keys",
    ".gcloud": "a folder of keys", ".kube": "a folder of keys",
}  # fmt: skip
#: Patterns for a file's name, in lower case.
_NAMES = {
    **dict.fromkeys(("*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.ppk", "*.kdbx"), "a key file"),
    **dict.fromkeys((f"id_{kind}{end}" for kind in ("rsa", "dsa", "ecdsa", "ed25519", "ecdsa_sk", "ed25519_sk")
                     for end in ("", ".bak", ".old")), "a private key"),
    **dict.fromkeys((".netrc", "_netrc", ".git-credentials", ".pgpass", ".my.cnf", ".htpasswd", ".dockercfg", ".s3cfg",
                     ".boto", "rclone.conf", "kubeconfig", "kubeconfig.*", "*.kubeconfig", "kaggle.json",
                     "credentials", "credentials.json", "credentials.csv", "client_secret*.json",
                     "application_default_credentials.json", "service-account*.json", "service_account*.json",
                     "secrets.yaml", "secrets.yml", "secrets.json", "secrets.toml"), "a file of credentials"),
}  # fmt: skip
_PATHS = (".docker/config.json", ".huggingface/token", "huggingface/token")
#: These hold settings as often as keys, so their contents decide.
_SOMETIMES = (".npmrc", ".pypirc", ".yarnrc*", "pip.conf", ".condarc", "config.json", ".gitconfig")
_ASSIGNED = re.compile(rb"(?im)^[^#;\n]*(?:_auth(?:token)?|password|passwd|token|secret)\"?\s*[=:]\s*\S+")
#: A real block: words about one, such as a pattern in a program, have no letters of base64 behind their line.
_PRIVATE_KEY = re.compile(
    rb"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----(?:[\s\"',]|\\r|\\n)+"
    rb"(?:[\w-]+: [^\n]*\n\s*)*[A-Za-z0-9+/]{16}"
)
_LOOKED_AT_BYTES = 1 << 20


def what_it_is(path: str, content: bytes) -> str:
    """What makes a file one that holds keys, in words; empty where nothing does.

    Args:
        path: below the root of the tree, with slashes.
        content: its bytes.
    """
    parts = PurePosixPath(path.lower()).parts
    for pattern, words in _PARTS.items():
        if any(fnmatchcase(part, pattern) for part in parts):
            return words
    name = parts[-1] if parts else ""
    found = next((words for pattern, words in _NAMES.items() if fnmatchcase(name, pattern)), "")
    if found or any(f"/{'/'.join(parts)}".endswith(f"/{end}") for end in _PATHS):
        return found or "a file of credentials"
    if _PRIVATE_KEY.search(content[:_LOOKED_AT_BYTES]):
        return "a private key"
    if _holds_a_key(name, content[:_LOOKED_AT_BYTES]):
        return "a file of credentials"
    return token(_text(content)) if len(content) <= _LOOKED_AT_BYTES else ""


def _text(content: bytes) -> str:
    """Empty where it is none; a Windows shell writes UTF-16, which begins with a mark."""
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return content.decode("utf-16", errors="replace")
    return "" if b"\0" in content else content.decode(errors="replace")


def _holds_a_key(name: str, content: bytes) -> bool:
    if not any(fnmatchcase(name, pattern) for pattern in _SOMETIMES):
        return False
    is_config = name == "config.json"  # as often a model's
    return shape(content.decode(errors="replace")) != "" or (not is_config and bool(_ASSIGNED.search(content)))
