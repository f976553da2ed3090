"""The ValidatingAdmissionPolicies that hold even when nothing of ours runs: the API server evaluates them.

policy         a policy as data, and its manifests
cel            pieces of CEL that several policies use
written_by_us  annotations, bindings, status and marks that only our processes write
claimed_pods   how a pod that asks for GPUs must look
capacity       who requests gpu.scheduling/milligpu
components     leases, reports of nodes, and priorities
filling        the MutatingAdmissionPolicies that fill a claimed pod in, as the webhook does
files          the text of all manifests; `make policies` writes it into config
"""
