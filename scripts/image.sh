#!/usr/bin/env bash
# Build the image, or send it to a registry: with docker or podman, and where neither answers, without them.
#
#   scripts/image.sh build [NAME...]   names with their tags (default: gpu-orchestrator:latest and :VERSION)
#   scripts/image.sh push NAME         a name that begins with a registry
#
# Without docker and podman, build writes dist/image.tar, an OCI layout, and push sends it with skopeo.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
archive=dist/image.tar

die() { echo "image: $*" >&2; exit 1; }
usage() { sed -n '2,7s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }

# Print the first of the two whose daemon or storage answers.
engine() {
  local each
  for each in docker podman; do
    if command -v "$each" >/dev/null && "$each" info >/dev/null 2>&1; then echo "$each" && return; fi
  done
}

build() {
  local names=("$@") with
  if ((!$#)); then
    names=(gpu-orchestrator:latest "gpu-orchestrator:$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' src/gpu_orchestrator/__init__.py)")
  fi
  with=$(engine)
  if [[ $with ]]; then
    "$with" build "${names[@]/#/--tag=}" .
    return
  fi
  echo "image: neither docker nor podman answers: built from Debian packages, see docs/install.md"
  local python=${PYTHON:-python3}
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    die "Python 3.11 or newer is needed, and $python is $("$python" -V 2>&1); try: PYTHON=python3.12 $0 build"
  "$python" -m scripts.image "${names[@]/#/--name=}" "$archive"
  echo "image: to a node:    ctr -n k8s.io images import $archive"
  echo "image: to kind:      kind load image-archive $archive"
  echo "image: to a registry: make docker-push IMG=REGISTRY/gpu-orchestrator:TAG, which needs skopeo"
}

push() {
  (($# == 1)) || die "push needs one name: make docker-push IMG=registry.example.com/gpu-orchestrator:1"
  [[ $1 == */* ]] || die "'$1' names no registry, as in registry.example.com/gpu-orchestrator:1"
  local with
  with=$(engine)
  if [[ $with ]]; then
    "$with" push "$1"
    return
  fi
  [[ -f $archive ]] || die "there is no $archive; first: make docker-build IMG=$1"
  command -v skopeo >/dev/null ||
    die "neither docker, podman nor skopeo is here; send $archive with one of them: skopeo copy oci-archive:$archive docker://$1"
  skopeo copy "oci-archive:$archive:$1" "docker://$1"
}

case ${1:-} in
  build | push) "$@" ;;
  -h | --help) usage ;;
  *) usage >&2; die "unknown word '${1:-}': build or push" ;;
esac
