"""What a record was measured on: a digest of C++ sources that only code changes."""

import hashlib
import re

SUFFIXES = {".c", ".cpp", ".cu", ".cuh", ".h", ".hpp"}

# A literal, which stays as it is, or comments and white space in a row.
TOKENS = re.compile(r"""("(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')|(?://[^\n]*|/\*.*?\*/|\s)+""", re.DOTALL)


def code_of(source):
    """C++ text without what compiles to nothing, so that putting a comment right does not ask for a GPU."""
    return TOKENS.sub(lambda match: match[1] or " ", source).strip()


def code_digest(root, *folders):
    """SHA-256 over the names and the code of the files in folders of root. Comments and white space do not count."""
    digest = hashlib.sha256()
    for path in sorted(p for folder in folders for p in (root / folder).rglob("*") if p.suffix in SUFFIXES):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + code_of(path.read_text()).encode() + b"\0")
    return digest.hexdigest()
