"""Everything that speaks to the Kubernetes API server. Apps import no other Kubernetes library.

Read in this order:

    errors     the tree of what can go wrong; retry decides which errors are worth another try
    auth/      where the server is and how we authenticate: config.load, kubeconfig, credentials, tls
    transport/ one request as bytes over HTTP/1.1: base, pooled, http1, with codec and urls
    client     get, list, create, patch and delete of any kind; pods adds bind and evict, reviews adds RBAC
    informer/  a live copy of one kind of object: watch, store, and overlay for our own writes
    workqueue  keys to reconcile, with retries and delays
    election   leader election on a Lease
    events     Kubernetes Events about what we did
    process    joins these into the main loop of the operator and of the scheduler
"""
