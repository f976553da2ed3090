"""Where the project's own files are, wherever a test lies."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
