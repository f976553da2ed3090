"""How we reach an API server and authenticate: `config` loads it all from `kubeconfig` files or from the pod,
`credentials` gives tokens and client certificates, `tls` makes the TLS context.
"""
