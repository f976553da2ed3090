"""Cut text that others wrote to a bound, with a mark that says how much is missing."""


def cut(text: str, most: int) -> str:
    """Return the text if it has at most `most` characters, else its beginning and a mark, in `most`
    characters."""
    if len(text) <= most:
        return text
    mark = f" [cut: {len(text):,} characters]"
    return text[: max(most - len(mark), 0)] + mark
