#!/usr/bin/env bash
# Remove the operator, or more, from the cluster of kubectl's current context. It is safe to run it again.
#
#   scripts/uninstall.sh [NAMESPACE] [--scheduler] [--all [--patience SECONDS]] [--dry-run]
#
#   NAMESPACE     their namespace (default: gpu-orchestrator-system)
#   --scheduler   also remove the gpu-scheduler; claims, and the leases of devices that pods have, stay
#   --all         remove everything: also every GPUWorkload with its Job, every GpuClaim, the
#                 CustomResourceDefinitions, and the namespace with all leases
#   --patience    how long the scheduler may take to release claims of ended pods (default: 60)
#   --dry-run     print what would be deleted, and change nothing
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
namespace=gpu-orchestrator-system
all=""
scheduler=""
dry_run=""
patience_s=60

die() { echo "uninstall: $*" >&2; exit 1; }
usage() { sed -n '2,12s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }

while (($#)); do
  case $1 in
    --all) all=yes ;;
    --scheduler) scheduler=yes ;;
    --patience) [[ ${2:-} =~ ^[0-9]+$ ]] || die "--patience needs a number of seconds"; patience_s=$2; shift ;;
    --dry-run) dry_run=--dry-run=server ;;
    -h | --help) usage; exit 0 ;;
    -*) die "unknown option $1; see $0 --help" ;;
    *) namespace=$1 ;;
  esac
  shift
done

command -v kubectl >/dev/null || die "kubectl was not found; install it: https://kubernetes.io/docs/tasks/tools/"
found=$(kubectl version --request-timeout=10s 2>&1 >/dev/null) ||
  die "no cluster answers: $(tail -n 1 <<<"$found"); check the current context: kubectl config current-context"

delete() {
  kubectl kustomize "$here/$1" | sed "s|gpu-orchestrator-system|$namespace|g" |
    kubectl delete --ignore-not-found --wait=true --timeout=120s ${dry_run:+"$dry_run"} -f -
}

count() { kubectl get "$1" -A --no-headers --ignore-not-found 2>/dev/null | wc -l; }

# One line for each claim that is reserved for a pod: namespace, claim, pod, and the pod's UID.
reserved() {
  kubectl get gpuclaims -A --ignore-not-found -o go-template='{{range .items}}{{$it := .metadata}}{{range $it.finalizers
    }}{{if eq . "gpu.scheduling/in-use"}}{{$it.namespace}} {{$it.name}} {{with $it.annotations}}{{or (index .
    "gpu.scheduling/pod") "-"}}{{else}}-{{end}} {{with $it.labels}}{{or (index . "gpu.scheduling/pod-uid") "-"}}{{else
    }}-{{end}}{{"\n"}}{{end}}{{end}}{{end}}' 2>/dev/null || true
}

# Those of them whose pod lives: it has the devices, and must go first.
in_use() {
  local space claim pod uid found
  while read -r space claim pod uid; do
    found=$(kubectl get pod "$pod" -n "$space" --ignore-not-found -o jsonpath='{.metadata.uid} {.status.phase}')
    case $found in
      "$uid Succeeded" | "$uid Failed") ;;
      "$uid "*) echo "$space/$claim (pod $pod)" ;;
    esac
  done < <(reserved)
}

# Give the scheduler time to release claims of ended pods; take the mark off those that it does not release.
release_claims() {
  local until_s=$((SECONDS + patience_s)) space claim rest
  while [[ $(reserved) ]] && ((SECONDS < until_s)) && [[ $1 == running ]]; do sleep 1; done
  while read -r space claim rest; do
    rest=$(kubectl get gpuclaim "$claim" -n "$space" -o go-template='{{range .metadata.finalizers
      }}{{if ne . "gpu.scheduling/in-use"}}"{{.}}",{{end}}{{end}}')
    kubectl patch gpuclaim "$claim" -n "$space" --type=merge -p "{\"metadata\":{\"finalizers\":[${rest%,}]}}" ||
      die "GpuClaim $space/$claim could not be freed"
  done < <(reserved)
}

scheduler_state() {
  local ready
  ready=$(kubectl get deployment gpu-scheduler -n "$namespace" --ignore-not-found -o jsonpath='{.status.readyReplicas}')
  if [[ ${ready:-0} -gt 0 ]]; then echo running; else echo gone; fi
}

left=$(count gpuworkloads)
if [[ $all ]]; then
  # Delete workloads while the operator still runs, so that it can clean up after each of them.
  if ((left)); then
    kubectl delete gpuworkloads --all -A --timeout=120s ${dry_run:+"$dry_run"} ||
      die "some GPUWorkloads were not deleted; is the operator running? kubectl get pods -n $namespace"
  fi
  used=$(in_use)
  [[ -z $used ]] || die "these GpuClaims are in use, so nothing more was removed; delete their pods first:"$'\n'"$used"
  if [[ -z $dry_run ]]; then release_claims "$(scheduler_state)"; fi
  delete config/default
else
  for part in rbac manager ${scheduler:+scheduler}; do delete "config/$part"; done
  echo "uninstall: namespace $namespace with its leases, the definitions, $left GPUWorkload(s) and" \
    "$(count gpuclaims) GpuClaim(s) stay; remove them too with: $0 --all"
fi
if [[ $dry_run ]]; then echo "uninstall: nothing was changed"; fi
