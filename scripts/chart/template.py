"""A template of the chart: a manifest of config, when it is part of a release, and what values change."""

# ruff: noqa: TID251 - a script, outside the pure packages

from dataclasses import dataclass
from pathlib import Path

from gpu_orchestrator.api import names
from scripts.chart.edits import Edit, NotThere

MADE = (
    "{{{{- /* Made by `make charts` from config/{source}; "
    "change that, or scripts/chart/templates.py. */ -}}}}\n"
)
NAMESPACE = "{{ .Release.Namespace }}"
IMAGE = 'image: {{ include "gpu-scheduler.image" . }}'


@dataclass(frozen=True, slots=True)
class Template:
    """A file of config, and when and how it is part of the chart."""

    source: str
    wanted: str
    edits: tuple[Edit, ...] = ()

    def text(self, config: Path) -> str:
        made = _plain((config / self.source).read_text())
        for edit in self.edits:
            try:
                made = edit(made)
            except NotThere as error:
                raise NotThere(f"config/{self.source}: {error}; adapt scripts/chart/templates.py") from None
        head = MADE.format(source=self.source)
        return f"{head}{{{{- if {self.wanted} }}}}\n{made}{{{{- end }}}}\n"


def _plain(text: str) -> str:
    """Return a manifest as a template that renders it, in the namespace and with the image of the release."""
    lines = text.splitlines(keepends=True)
    while lines and (lines[0].startswith("# Made by") or lines[0] == "---\n"):
        del lines[0]
    escaped = "".join(lines).replace("{{", '{{ "{{" }}')
    here = escaped.replace(names.NAMESPACE, NAMESPACE)
    return here.replace("image: gpu-orchestrator\n", f"{IMAGE}\n").replace(
        "imagePullPolicy: IfNotPresent\n", "imagePullPolicy: {{ .Values.image.pullPolicy }}\n"
    )


PULL_SECRETS = (
    "      {{- with .Values.imagePullSecrets }}\n      imagePullSecrets:\n"
    "      {{- toYaml . | nindent 6 }}\n      {{- end }}\n"
)


def where(values: str) -> str:
    return "".join(
        f"      {{{{- with .Values.{values}.{each} }}}}\n      {each}:\n"
        "        {{- toYaml . | nindent 8 }}\n      {{- end }}\n"
        for each in ("nodeSelector", "tolerations", "affinity")
    )
