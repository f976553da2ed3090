"""Everything that a release consists of, made from one commit: `make release`.

1. checks     what is wrong with the tree as a release: version, changelog, repository, commit
2. changelog  CHANGELOG.md: its sections, and what is said about one version
3. archives   packages of the same bytes each time, and their checksums
4. sbom       what we depend on, from the hash-locked lists, as CycloneDX
"""
