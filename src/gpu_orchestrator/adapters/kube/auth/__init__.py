"""How we reach an API server and prove who we are: kubeconfig, credentials, TLS."""
