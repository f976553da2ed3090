"""The store: a real Valkey or Redis whose scripts decide every race; the single source of truth about
tasks."""
