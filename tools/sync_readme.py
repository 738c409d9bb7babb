#!/usr/bin/env python3
"""Copies code from the examples into the documentation, so that every snippet there is code that a test runs.

    tools/sync_readme.py [--check] [FILE...]      default: README.md

In a document, the code block between `<!-- from PATH -->` and `<!-- end -->` is the text of PATH between its lines
"README: begin" and "README: end"; several such regions are joined by an empty line. --check changes nothing and fails
if a document is not up to date.
"""

import argparse
import re
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"(<!-- from (?P<path>\S+) -->\n```(?P<language>\w*)\n).*?(```\n<!-- end -->)", re.DOTALL)
REGION = re.compile(r"^[^\n]*README: begin[^\n]*\n(.*?)^[^\n]*README: end", re.DOTALL | re.MULTILINE)


def snippet(path):
    """The marked regions of a source file, without their indentation."""
    regions = REGION.findall(path.read_text())
    if not regions:
        raise ValueError(f"{path}: has no region between README: begin and README: end")
    return "\n".join(textwrap.dedent(region) for region in regions)


def synced(text, root=ROOT):
    """The document with every snippet as its source has it now."""
    return BLOCK.sub(lambda m: m.group(1) + snippet(root / m.group("path")) + m.group(4), text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing, fail if something would change")
    parser.add_argument("files", nargs="*", type=Path, default=[ROOT / "README.md"])
    arguments = parser.parse_args()
    stale = []
    for path in arguments.files:
        text = path.read_text()
        if synced(text) != text:
            stale.append(path)
            if not arguments.check:
                path.write_text(synced(text))
    if arguments.check:
        for path in stale:
            print(f"{path}: its snippets are not those of the examples. Run tools/sync_readme.py", file=sys.stderr)
    return 1 if arguments.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
