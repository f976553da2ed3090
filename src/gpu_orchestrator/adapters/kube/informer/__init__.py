"""Live copies of API objects: `watch` keeps one kind current in a `store`, and `overlay` adds our own writes.
`handlers` are told of changes, `frames` splits the stream, `interning` saves memory, `versions` compares
resourceVersions.
"""
