"""Any text as a label value: what does not fit is replaced, what was lost is hashed."""

import hashlib
import re

LONGEST = 63


def safe(text: str) -> str:
    """A valid label value that reads like the text. One that had to be cut, or has nothing left to read, ends
    in a hash, so that different texts stay different."""
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")
    if readable and len(readable) <= LONGEST:
        return readable
    short = readable[: LONGEST - 9].rstrip("-._")
    return f"{short}-{_hash(text)}" if short else f"x-{_hash(text)}"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]
