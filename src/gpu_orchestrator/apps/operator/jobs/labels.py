"""Turn any text into a valid label value. Called by `job` for model and workload names."""

import hashlib
import re

LONGEST = 63


def safe(text: str) -> str:
    """Replace the characters that a label may not have. If the result is too long or empty, append a hash, so
    that different texts get different labels."""
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")
    if readable and len(readable) <= LONGEST:
        return readable
    short = readable[: LONGEST - 9].rstrip("-._")
    return f"{short}-{_hash(text)}" if short else f"x-{_hash(text)}"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]
