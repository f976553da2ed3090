#!/usr/bin/env bash
# Install or remove the custom resources alone, in the cluster of kubectl's current context.
#
#   scripts/definitions.sh install     also to update them
#   scripts/definitions.sh uninstall   only if there is no object of theirs: it would be removed with them
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
kinds=(gpuworkloads.gpu.warp.dev gpuclaims.gpu.scheduling gpunodestatuses.gpu.scheduling gpuqueues.gpu.scheduling)

die() { echo "definitions: $*" >&2; exit 1; }

command -v kubectl >/dev/null || die "kubectl was not found; install it: https://kubernetes.io/docs/tasks/tools/"
found=$(kubectl version --request-timeout=10s 2>&1 >/dev/null) ||
  die "no cluster answers: $(tail -n 1 <<<"$found"); check the current context: kubectl config current-context"

install() {
  kubectl apply --server-side --force-conflicts -k "$here/config/crd"
}

uninstall() {
  local kind defined left
  for kind in "${kinds[@]}"; do
    defined=$(kubectl get crd "$kind" --ignore-not-found -o name) || die "could not ask for $kind; see above"
    [[ $defined ]] || continue
    left=$(kubectl get "$kind" --all-namespaces --ignore-not-found -o name) || die "could not list $kind; see above"
    [[ -z $left ]] || die "$(grep -c . <<<"$left") $kind are there, and would go with their definition, so nothing was" \
      "removed; scripts/uninstall.sh --all removes them in order, with what they hold"
  done
  kubectl delete -k "$here/config/crd" --ignore-not-found
}

case ${1:-} in
  install | uninstall) "$1" ;;
  *) sed -n '2,5s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 2 ;;
esac
