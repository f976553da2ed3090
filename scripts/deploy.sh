#!/usr/bin/env bash
# Install the operator, the gpu-scheduler, the webhook, the policies and, on nodes with GPUs, the agent into the cluster
# of kubectl's current context. Run it again to update them; the settings of gpu-scheduler, webhook and agent stay then.
#
#   scripts/deploy.sh [NAMESPACE] [--image IMAGE] [--dry-run] [--no-wait]
#
#   NAMESPACE   their namespace (default: gpu-orchestrator-system)
#   --image     their image (default: gpu-orchestrator:latest)
#   --dry-run   ask the API server whether it would accept everything, and change nothing
#   --no-wait   do not wait until they are ready
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
namespace=gpu-orchestrator-system
image=gpu-orchestrator:latest
dry_run=""
wait=yes

die() { echo "deploy: $*" >&2; exit 1; }
usage() { sed -n '2,11s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }

while (($#)); do
  case $1 in
    --image) [[ ${2:-} ]] || die "--image needs the name of an image"; image=$2; shift ;;
    --image=*) image=${1#*=} ;;
    --dry-run) dry_run=--dry-run=server ;;
    --no-wait) wait="" ;;
    -h | --help) usage; exit 0 ;;
    -*) die "unknown option $1; see $0 --help" ;;
    *) namespace=$1 ;;
  esac
  shift
done

[[ $namespace =~ ^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$ ]] || die "'$namespace' is not a valid namespace name"
command -v kubectl >/dev/null || die "kubectl was not found; install it: https://kubernetes.io/docs/tasks/tools/"
found=$(kubectl version --request-timeout=10s 2>&1 >/dev/null) ||
  die "no cluster answers: $(tail -n 1 <<<"$found"); check the current context: kubectl config current-context"

# They have names of the whole cluster: bound to the ServiceAccounts of another namespace, those of the first lose their
# rights, and the new gpu-scheduler does not see which devices the first has given away.
bindings=$(kubectl get clusterrolebindings \
  -o jsonpath='{range .items[*]}{.metadata.name}{" "}{.subjects[*].namespace}{"\n"}{end}') ||
  die "could not look for another installation (ClusterRoleBindings); see above"
for each in gpu-scheduler gpu-orchestrator-controller-manager gpu-scheduler-webhook gpu-scheduler-agent; do
  spaces=$(sed -n "s/^$each //p" <<<"$bindings")
  [[ -z $spaces || " $spaces " == *" $namespace "* ]] ||
    die "this cluster has an installation in namespace $spaces (ClusterRoleBinding $each), and can have one only;" \
      "update that one: $0 $spaces; or remove it first, with its leases: ${0%deploy.sh}uninstall.sh $spaces --all"
done

manifests() {
  kubectl kustomize "$here/$1" |
    sed -e "s|gpu-orchestrator-system|$namespace|g" -e "s|image: gpu-orchestrator:latest|image: $image|"
}

# Of the manifests on stdin, print the document of this kind and name (only), or all others (without).
documents() {
  awk -v want="$1" -v kind="$2" -v name="$3" '
    function flush(  is_it) {
      is_it = index("\n" text, "\nkind: " kind "\n") && index(text, "\n  name: " name "\n")
      if ((want == "only") == (is_it ? 1 : 0)) printf "%s", text
      text = ""
    }
    $0 == "---" { flush() }
    { text = text $0 "\n" }
    END { flush() }'
}

everything=$(manifests config/default)
# With its MPS daemons the CUDA work of all shared claims would end, so an agent that keeps them goes on doing so.
args=$(kubectl get daemonset gpu-scheduler-agent -n "$namespace" --ignore-not-found \
  -o jsonpath='{.spec.template.spec.containers[*].args}') || die "could not look for the agent; see above"
if [[ $args == *'"--mps"'* ]]; then
  echo "deploy: the agent keeps MPS daemons, so it is updated from config/agent-mps"
  everything=$(documents without DaemonSet gpu-scheduler-agent <<<"$everything")$'\n---\n'$(manifests config/agent-mps)
fi
for each in gpu-scheduler gpu-scheduler-webhook gpu-scheduler-agent; do
  settings=$(kubectl get configmap "$each" -n "$namespace" --ignore-not-found -o jsonpath='{.data}') ||
    die "could not look for the settings of the $each (ConfigMap $each in namespace $namespace)"
  [[ $settings ]] || continue
  echo "deploy: the settings of the $each (ConfigMap $each) stay as they are"
  everything=$(documents without ConfigMap "$each" <<<"$everything")
  for word in requireDeviceEnv requireCapacity; do
    [[ $each != gpu-scheduler || $settings == *"$word: Refuse"* ]] ||
      echo "deploy: they do not say '$word: Refuse', so pods from before the webhook are still bound; set it when" \
        "none waits any more: docs/webhook.md, under Update"
  done
done

if [[ $dry_run ]]; then
  # The API server rejects objects of a namespace that does not exist yet, so kubectl checks those.
  manifests config/crd | kubectl apply --server-side "$dry_run" -f -
  kubectl apply --dry-run=client -f - <<<"$everything"
  echo "deploy: nothing was changed"
  exit 0
fi

# A class cannot change whether it preempts, so a gpu-high that differs in this is made again. Pods keep what they have.
policy=$(documents only PriorityClass gpu-high <<<"$everything" | sed -n 's/^preemptionPolicy: //p')
policy=${policy:-PreemptLowerPriority}
found=$(kubectl get priorityclass gpu-high --ignore-not-found -o jsonpath='{.preemptionPolicy}')
if [[ $found && $found != "$policy" ]]; then
  echo "deploy: preemptionPolicy of priority class gpu-high was $found and is now $policy; to change that, see" \
    "config/priority/priority_classes.yaml"
  kubectl delete priorityclass gpu-high
fi
manifests config/crd | kubectl apply --server-side --force-conflicts -f -
# kubectl gives up on a definition that is so new that it has no conditions yet, so ask it again.
until_s=$((SECONDS + 60))
until found=$(kubectl wait --for=condition=Established --timeout=60s crd/gpuworkloads.gpu.warp.dev \
  crd/gpuclaims.gpu.scheduling crd/gpunodestatuses.gpu.scheduling crd/gpuqueues.gpu.scheduling 2>&1); do
  ((SECONDS < until_s)) || die "the custom resources are not served: $(tail -n 1 <<<"$found")"
  sleep 1
done
# The policies let no new pod have a high priority unless an administrator has allowed it, also not of old workloads.
high=$(kubectl get gpuworkloads.gpu.warp.dev -A --ignore-not-found \
  -o jsonpath='{range .items[?(@.spec.priority=="high")]}{.metadata.namespace}{"\n"}{end}' | sort -u)
allowed=$(kubectl get namespaces -l gpu.scheduling/allow-high-priority=true --ignore-not-found \
  -o jsonpath='{range .items[*]}{.metadata.name}{"\n"}{end}' | sort -u)
for each in $(comm -23 <(echo "$high") <(echo "$allowed")); do
  echo "deploy: namespace $each has GPUWorkloads of high priority, whose next pods will be refused; to allow them:" \
    "kubectl label namespace $each gpu.scheduling/allow-high-priority=true"
done
kubectl apply --server-side --force-conflicts -f - <<<"$everything"
# Simulated nodes (kwok, as in `make cluster`) show pods as Running and run nothing.
simulated() {
  local kinds
  kinds=$(kubectl get nodes -o jsonpath='{range .items[*]}{.metadata.annotations.kwok\.x-k8s\.io/node}{"\n"}{end}')
  [[ $kinds ]] && ! grep -qv . <<<"$kinds"
}

if simulated; then
  echo "deploy: namespace $namespace has all that they need, but the nodes of this cluster are simulated (kwok)"
  echo "deploy: and run no containers: the pods only pretend to run, so nothing fills in pods that ask for GPUs, and the"
  echo "deploy: policies refuse them. To try it out here: ${0%deploy.sh}uninstall.sh $namespace --all, then"
  echo "deploy: kubectl apply -k config/local, and run gpu-orchestrator operator and gpu-orchestrator scheduler yourself"
  exit 0
fi
if [[ $wait ]]; then
  for each in gpu-orchestrator-controller-manager gpu-scheduler gpu-scheduler-webhook; do
    kubectl rollout status "deployment/$each" -n "$namespace" --timeout=180s ||
      die "$each did not become ready; look at: kubectl get pods,events -n $namespace"
  done
  # One broken node must not make the whole installation fail.
  kubectl rollout status daemonset/gpu-scheduler-agent -n "$namespace" --timeout=60s ||
    echo "deploy: the agent is not ready on each of its nodes; look at: kubectl get pods -o wide -n $namespace"
fi
echo "deploy: operator, gpu-scheduler, webhook, policies and agent are installed in namespace $namespace"
echo "deploy: the agent runs on nodes whose labels tell of GPUs (docs/agent.md): kubectl get gns; for another node:" \
  "kubectl label node NAME gpu.scheduling/agent=true"
echo "deploy: try: kubectl apply -f examples/gpuworkload-sample.yaml -f examples/claimed-pod.yaml"
