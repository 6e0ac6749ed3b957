"""Recognises texts that look like keys: by the formats that services use, and by how random the letters are."""

import re
from itertools import pairwise

#: What a key is -> how it begins and goes on. Lengths are the shortest that the services give, or somewhat less.
_SHAPES = {
    "a private key": r"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY",
    "an address with a password": r"(?<=[\w+.-])://[^\s/@:?#]*:[^\s/@]+@",
    "a password": r"(?i:(?:^|[;&?,\s])(?:password|passwd|pwd|accountkey|sharedaccesskey|client_secret)=[^\s;&$]{4,})",
    "a bearer token": r"(?i:\bbearer\s+[\w.~+/-]{16,})",
    "a JSON web token": r"\beyJ[\w-]{10,}\.[\w-]{10,}",
    "an AWS key": r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b",
    "a Google key": r"\bAIza[\w-]{30,}|\bya29\.[\w-]{20,}|\bGOCSPX-[\w-]{20,}",
    "a GitHub token": r"\bgh[pousr]_[A-Za-z0-9]{20,}|\bgithub_pat_\w{20,}",
    "a GitLab token": r"\bgl(?:pat|rt|dt|cbt|ptt|soat|agent)-[\w-]{16,}",
    "a Slack token": r"\bxox[abeoprs]-[\w-]{10,}|\bxapp-[\w-]{10,}",
    "a Hugging Face token": r"\b(?:hf|api_org)_[A-Za-z0-9]{20,}",
    "an NVIDIA key": r"\bnvapi-[\w-]{16,}",
    "a W&B key": r"\bwandb_v\d_[\w-]{16,}|\blocal-[0-9a-f]{16,}",
    "an API key": r"\b[srp]k[-_](?:live|test|proj|ant|or)[-_][\w-]{12,}|\bsk-[A-Za-z0-9]{16,}|\bSG\.[\w-]{16,}\.\w",
    "a package index token": r"\bpypi-[\w-]{16,}|\bnpm_[A-Za-z0-9]{20,}|\bdckr_pat_[\w-]{16,}|\bdapi[0-9a-f]{32}",
}  # fmt: skip
_ANY = {words: re.compile(pattern) for words, pattern in _SHAPES.items()}
#: Code and documents name these and give examples: there they are no proof of a key.
_SPOKEN_OF = ("a private key", "an address with a password", "a password", "a bearer token")
_LONG = re.compile(r"[\w.-]{15,}")  # what may be one of the others
_ADDRESS = re.compile(r"://[^\s/@:?#'\"{}<>$%\[\]]*:([^\s/@:'\"{}<>$%\[\]]{8,})@")
_BREAKS = re.compile(r"[\s,;:|&?@\"'(){}\[\]<>^%$!*.~]+")
_UUID = re.compile(r"(?i)[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_DIGEST = re.compile(r"(?i)\b(?:sha(?:1|224|256|384|512)|md5|blake2b|git)[:=-][0-9a-f]{32,128}")
_HEX = re.compile(r"[0-9a-f]{32,}|[0-9A-F]{32,}")
_LEAST = 20  # letters: shorter words of mixed letters are names as often as keys
_CLASSES = ("abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "0123456789")


def shape(text: str) -> str:
    """What a key in a text is, by a shape that nothing but keys has; empty where there is none."""
    return next((words for words, pattern in _ANY.items() if pattern.search(text)), "")


def token(text: str) -> str:
    """What a token in a text of any kind is, be it code or a document; empty where there is none.

    What shows how a token looks has no digit in it or says EXAMPLE, and a password of letters of one kind is a word.
    """
    long = "\n".join(set(_LONG.findall(text)))  # a tenth of a text: one that is long is read once, not for each shape
    for words, pattern in _ANY.items():
        found = (match[0] for match in pattern.finditer(long)) if words not in _SPOKEN_OF else ()
        if any(re.search(r"\d", one) and "EXAMPLE" not in one for one in found):
            return words
    passwords = (match[1] for match in _ADDRESS.finditer(text))
    drawn = any(sum(any(letter in kind for letter in one) for kind in _CLASSES) > 1 for one in passwords)
    return "an address with a password" if drawn else ""


def looks_like_a_key(text: str) -> str:
    """What a key in a text is, by its shape or by letters that nobody types; empty where it looks like none.

    Paths, names, numbers, lists of them, UUIDs (a GPU has one) and digests that say what they are look like none. A
    bare git commit has the shape of a W&B key, and so looks like one.
    """
    if found := shape(text):
        return found
    rest = _DIGEST.sub(" ", _UUID.sub(" ", text))
    for word in _BREAKS.split(rest):
        parts = word.split("/")
        is_path = len(parts) > 1 and "+" not in word and (not parts[0] or max(map(len, parts)) < _LEAST)
        for run in parts if is_path else [word]:
            run = run.rpartition("=")[2] if "=" in run.rstrip("=") else run.rstrip("=")
            is_mixed = any(map(_is_mixed, (run, *re.split("[_-]", run))))
            if (_HEX.search(run) and not run.isdigit()) or (is_mixed and not _HEX.search(run)):
                return "a random text"
    return ""


def _is_mixed(run: str) -> bool:
    """Whether letters of all three kinds change places as often as drawn ones do: 0.62 of all neighbours differ.

    Words joined in capitals change two times a word, less than 0.35; two kinds alone are told by more letters. Many
    signs between them are a name's.
    """
    kinds = [next((number for number, kind in enumerate(_CLASSES) if letter in kind), None) for letter in run]
    known = [kind for kind in kinds if kind is not None]
    # Signs that join its parts; those of base64 count a third, since a path does not come here.
    joins = sum(run.count(sign) for sign in "_-") + sum(run.count(sign) for sign in "+/") // 3
    if len(known) < _LEAST or joins > len(run) / 10 or len(set(run)) < 10:
        return False
    changes = sum(one != other for one, other in pairwise(known)) / (len(known) - 1)
    if len(set(known)) == 3:
        return changes >= 0.35
    return len(set(known)) == 2 and len(known) >= 24 and changes >= 0.2 and known.count(2) >= 3
