#!/usr/bin/env bash
# Remove the operator, or more, from the cluster of kubectl's current context. It is safe to run it again.
#
#   scripts/uninstall.sh [NAMESPACE] [--scheduler] [--all [--patience SECONDS]] [--dry-run]
#
#   NAMESPACE     their namespace (default: gpu-orchestrator-system)
#   --scheduler   also remove the gpu-scheduler, its webhook, the policies, the agent with its reports, and what they
#                 wrote on nodes; claims, and the leases of devices that pods have, stay
#   --all         remove everything: also every GPUWorkload with its Job, every GpuClaim, the
#                 CustomResourceDefinitions, the namespace with all leases, and our labels of nodes
#   --patience    how long ended pods may keep their claims, and deleted workloads their pods (default: 60)
#   --dry-run     print what would be deleted, and change nothing
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
namespace=gpu-orchestrator-system
all=""
scheduler=""
dry_run=""
patience_s=60

die() { echo "uninstall: $*" >&2; exit 1; }
usage() { sed -n '2,14s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }

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

# Roles, bindings and flow schemas have names of the whole cluster: those of an installation in another namespace stay.
bindings=$(kubectl get clusterrolebindings \
  -o jsonpath='{range .items[*]}{.metadata.name}{" "}{.subjects[*].namespace}{"\n"}{end}') ||
  die "could not ask which namespace is installed (ClusterRoleBindings); see above"
for each in gpu-orchestrator-controller-manager ${all:+gpu-scheduler} ${scheduler:+gpu-scheduler}; do
  spaces=$(sed -n "s/^$each //p" <<<"$bindings")
  [[ -z $spaces || " $spaces " == *" $namespace "* ]] ||
    die "namespace $namespace was asked for, and the installation is in namespace $spaces (ClusterRoleBinding" \
      "$each), so nothing was removed; run: $0 $spaces"
done

# Delete what a folder describes. A kubectl sends five requests a second, and we have ninety objects: so several share
# the work, twelve objects each.
delete() {
  local shares
  shares=$(mktemp -d)
  kubectl kustomize "$here/$1" | sed "s|gpu-orchestrator-system|$namespace|g" | awk -v shares="$shares" '
    $0 == "---" { number++ }
    { print > (shares "/" int(number / 12) ".yaml") }'
  printf '%s\0' "$shares"/* |
    xargs -0 -n 1 -P 16 kubectl delete --ignore-not-found --wait=true --timeout=120s ${dry_run:+"$dry_run"} -f ||
    die "some objects of $1 were not deleted; see above"
  rm -r "$shares"
}

# Print what there is of a custom resource, as `kubectl get` does with these words: nothing without its definition.
list() {
  local defined
  defined=$(kubectl get crd "$1" --ignore-not-found -o name) || die "could not ask whether there are $1; see above"
  [[ $defined ]] || return 0
  kubectl get "$1" -A --ignore-not-found "${@:2}" || die "could not list $1; see above"
}

count() {
  local found
  found=$(list "$1" -o name) || exit 1
  grep -c . <<<"$found" || true
}

# One line for each object with this finalizer: namespace, name, and the UID of the pod that it is reserved for.
marked() {
  list "$1" -o go-template='{{range .items}}{{$it := .metadata}}{{range $it.finalizers}}{{if eq . "'"$2"'"
    }}{{$it.namespace}} {{$it.name}} {{with $it.labels}}{{or (index . "gpu.scheduling/pod-uid") "-"}}{{else
    }}-{{end}}{{"\n"}}{{end}}{{end}}{{end}}'
}
reserved() { marked gpuclaims.gpu.scheduling gpu.scheduling/in-use; }

# Take this finalizer off every object that has it.
unmark() {
  local found space name rest left
  found=$(marked "$1" "$2") || exit 1
  while read -r space name _; do
    [[ $name ]] || continue
    rest=$(kubectl get "$1" "$name" -n "$space" --ignore-not-found -o go-template='{{range .metadata.finalizers
      }}{{if ne . "'"$2"'"}}"{{.}}",{{end}}{{end}}')
    kubectl patch "$1" "$name" -n "$space" --type=merge -p "{\"metadata\":{\"finalizers\":[${rest%,}]}}" && continue
    left=$(kubectl get "$1" "$name" -n "$space" --ignore-not-found -o name) && [[ -z $left ]] ||
      die "finalizer $2 could not be taken off $1 $space/$name; see above"
  done <<<"$found"
}

# The leases of devices: who holds each, alone or with others.
leases() {
  kubectl get leases -n "$namespace" -l gpu.scheduling/managed=true --ignore-not-found -o go-template='{{range .items
    }}{{.spec.holderIdentity}} {{with .metadata.annotations}}{{index . "gpu.scheduling/holders"}}{{end}}{{"\n"}}{{end
    }}' || die "could not list the leases of namespace $namespace; see above"
}

# The pods that have not ended: UID, and namespace/name.
live_pods() {
  kubectl get pods -A --ignore-not-found --field-selector=status.phase!=Succeeded,status.phase!=Failed \
    -o go-template='{{range .items}}{{.metadata.uid}} {{.metadata.namespace}}/{{.metadata.name}}{{"\n"}}{{end}}' ||
    die "could not list pods; see above"
}

# Those of them that have devices, by a claim or without one; they must go first.
in_use() {
  local held pods
  held=$(reserved && leases) || exit 1
  pods=$(live_pods) || exit 1
  held=$(grep -oE '[0-9a-f-]{36}' <<<"$held") || return 0
  awk 'NR == FNR { held[$1]; next } $1 in held { print $2 }' <(echo "$held") <(echo "$pods")
}

# Delete workloads while the operator still runs, so that it can clean up after each of them. Without it, nobody else
# takes its finalizer off; their Jobs and pods follow them as what they own.
delete_workloads() {
  local until_s=$((SECONDS + patience_s)) kind=gpuworkloads.gpu.warp.dev operator
  operator=$(state gpu-orchestrator-controller-manager)
  if [[ $operator == running ]]; then
    kubectl delete "$kind" --all -A --timeout=120s ${dry_run:+"$dry_run"} ||
      die "some GPUWorkloads were not deleted; is the operator running? kubectl get pods -n $namespace"
    return
  fi
  kubectl delete "$kind" --all -A --wait=false ${dry_run:+"$dry_run"} || die "some GPUWorkloads were not deleted"
  if [[ $dry_run ]]; then return; fi
  unmark "$kind" gpu.warp.dev/finalizer
  while ((SECONDS < until_s)) && [[ $(in_use) ]]; do sleep 1; done
}

# Give the scheduler time to release claims of ended pods; take the mark off those that it does not release.
release_claims() {
  local until_s=$((SECONDS + patience_s))
  while [[ $1 == running ]] && ((SECONDS < until_s)) && [[ $(reserved) ]]; do sleep 1; done
  unmark gpuclaims.gpu.scheduling gpu.scheduling/in-use
}

# Whether a Deployment of ours is running or gone.
state() {
  local ready
  ready=$(kubectl get deployment "$1" -n "$namespace" --ignore-not-found -o jsonpath='{.status.readyReplicas}') ||
    die "could not look for deployment $1 in namespace $namespace; see above"
  if [[ ${ready:-0} -gt 0 ]]; then echo running; else echo gone; fi
}

# Print the nodes for which a go-template's condition is true, one a line.
nodes() {
  kubectl get nodes -o go-template='{{range .items}}{{$name := .metadata.name}}'"$1"'{{end}}' ||
    die "could not list nodes; see above"
}

# Run `kubectl WORDS` for each node named on stdin. Nodes come and go: one that is gone needs nothing more.
each_node() {
  local node left
  while read -r node; do
    [[ $node ]] || continue
    kubectl "${@//NODE/$node}" ${dry_run:+"$dry_run"} </dev/null && continue
    left=$(kubectl get node "$node" --ignore-not-found -o name) && [[ -z $left ]] ||
      die "node $node could not be cleaned; see above"
  done
}

# Take off the nodes what scheduler and agent wrote there, once nobody is left to write it again.
clean_nodes() {
  local line='{{$name}}{{"\n"}}' counted tainted part
  for part in gpu-scheduler gpu-scheduler-agent; do
    [[ $dry_run ]] || kubectl wait --for=delete pod -n "$namespace" --timeout=60s \
      -l "app.kubernetes.io/name=gpu-orchestrator,app.kubernetes.io/component=$part" >/dev/null ||
      echo "uninstall: pods of $part have not ended; if nodes show gpu.scheduling/milligpu later, run this again"
  done
  counted=$(nodes "{{with .status.capacity}}{{if index . \"$milligpu\"}}$line{{end}}{{end}}" &&
    nodes "{{with .status.allocatable}}{{if index . \"$milligpu\"}}$line{{end}}{{end}}") || exit 1
  tainted=$(nodes "{{range .spec.taints}}{{if eq .key \"$taint\"}}$line{{end}}{{end}}") || exit 1
  each_node patch node NODE --subresource=status --type=merge \
    -p '{"status":{"capacity":{"'$milligpu'":null},"allocatable":{"'$milligpu'":null}}}' <<<"$(sort -u <<<"$counted")"
  each_node taint node NODE "$taint-" <<<"$(sort -u <<<"$tainted")"
}

# Take the labels off nodes that administrators wrote for us.
unlabel_nodes() {
  local label
  for label in gpu.scheduling/agent gpu.scheduling/mode; do
    kubectl label nodes -l "$label" "$label-" ${dry_run:+"$dry_run"} || die "label $label stays on nodes; see above"
  done
}

# What the agent reported: it would be believed for ever.
delete_reports() {
  local lease
  if [[ $(list gpunodestatuses.gpu.scheduling -o name) ]]; then
    kubectl delete gpunodestatuses.gpu.scheduling --all ${dry_run:+"$dry_run"} || die "some reports were not deleted"
  fi
  for lease in $(kubectl get leases -n "$namespace" --ignore-not-found -o name | grep /gpu-agent- || true); do
    kubectl delete -n "$namespace" "$lease" --ignore-not-found ${dry_run:+"$dry_run"}
  done
}

milligpu=gpu.scheduling/milligpu
taint=gpu.scheduling/mismatch
left=$(count gpuworkloads.gpu.warp.dev)
if [[ $all ]]; then
  if ((left)); then delete_workloads; fi
  used=$(in_use)
  [[ -z $used ]] || die "these pods have devices, so nothing more was removed; delete them first:"$'\n'"$used"
  if [[ -z $dry_run ]]; then
    scheduler_state=$(state gpu-scheduler)
    release_claims "$scheduler_state"
  fi
  for part in config/agent-mps config/scheduler-podgroups config/default; do delete $part; done
  clean_nodes
  unlabel_nodes
else
  # The policies first: without a webhook they would refuse pods that nobody is left to serve.
  for part in rbac manager ${scheduler:+policy webhook agent-mps scheduler-podgroups scheduler}; do delete "config/$part"; done
  if [[ $scheduler ]]; then
    # The webhook has made this one itself.
    kubectl delete secret gpu-scheduler-webhook-cert -n "$namespace" --ignore-not-found ${dry_run:+"$dry_run"}
    clean_nodes
    delete_reports
  fi
  claims=$(count gpuclaims.gpu.scheduling)
  echo "uninstall: namespace $namespace with its leases, the definitions, $left GPUWorkload(s) and" \
    "$claims GpuClaim(s) stay; remove them too with: $0 $namespace --all"
fi
if [[ $dry_run ]]; then echo "uninstall: nothing was changed"; fi
