#!/usr/bin/env bash
# Remove the operator from the cluster of kubectl's current context. It is safe to run it again.
#
#   scripts/uninstall.sh [NAMESPACE] [--all] [--dry-run]
#
#   NAMESPACE   the operator's namespace (default: gpu-orchestrator-system)
#   --all       also delete every GPUWorkload with its Job, and the CustomResourceDefinitions
#   --dry-run   print what would be deleted, and change nothing
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
namespace=gpu-orchestrator-system
all=""
dry_run=""

die() { echo "uninstall: $*" >&2; exit 1; }
usage() { sed -n '2,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }

while (($#)); do
  case $1 in
    --all) all=yes ;;
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

workloads() { kubectl get gpuworkloads -A --no-headers --ignore-not-found 2>/dev/null || true; }

left=$(workloads | wc -l)
if [[ $all ]]; then
  # Delete workloads while the operator still runs, so that it can clean up after each of them.
  if ((left)); then
    kubectl delete gpuworkloads --all -A --timeout=120s ${dry_run:+"$dry_run"} ||
      die "some GPUWorkloads were not deleted; is the operator running? kubectl get pods -n $namespace"
  fi
  delete config/default
else
  for part in rbac manager priority; do delete "config/$part"; done
  echo "uninstall: the definitions and $left GPUWorkload(s) stay; remove them too with: $0 --all"
fi
if [[ $dry_run ]]; then echo "uninstall: nothing was changed"; fi
