"""What tenants try, and what they may do, on a real API server with the admission policies.

calls        one request as data, and its outcome
pods         pods as JSON: plain, claimed, and claimed with all that they need
sins         what of an admitted pod would break the rules, found without the policies
creations    forgeries of pods that are created
changes      forgeries of pods that are there, and of their bindings
kinds        forgeries of claims, workloads, leases, reports, priorities and namespaces
queues       forgeries of queues, and what pods may say of theirs
ports        the ports of the webhook, called directly
legitimate   requests that must pass unharmed
controllers  pods that real controllers make
work         real work of scheduler and operator under the policies
play         a cluster with the users and objects of the tables, and the phases in which they are tried
"""
