{{- define "cgpu.labels" -}}
app.kubernetes.io/name: cgpu
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- /* Values that cannot be together, before any object is made. */ -}}
{{- define "cgpu.refusals" -}}
{{- if and (not .Values.agent.devicePlugin) (semverCompare "< 1.36.0-0" .Capabilities.KubeVersion.Version) }}
{{- fail (printf "Kubernetes %s: claims of parts of a GPU need 1.36.0 or later. For older clusters set agent.devicePlugin=aliyun.com/gpu-mem: docs/guide/kubernetes.md, Clusters whose scheduler can only count" .Capabilities.KubeVersion.Version) }}
{{- end }}
{{- if and (eq .Values.install.engine "crio") (eq .Values.install.restart "signal") }}
{{- fail "install.restart=signal is for containerd: with install.engine=crio leave install.restart empty, or set it to systemd or none" }}
{{- end }}
{{- end }}

{{- /* Whether there is the controller that makes classic pods' templates and counts for namespaces' maxima, with the policies of these: also with
values that were kept from before `quota` was one of them. */ -}}
{{- define "cgpu.templates" -}}
{{- $quota := ne (toString (.Values.quota).enabled) "false" -}}
{{- if and (not .Values.agent.devicePlugin) (or .Values.classic.enabled $quota) }}yes{{ end -}}
{{- end }}

{{- define "cgpu.restart" -}}
{{- with .Values.install -}}
{{- .restart | default (ternary "systemd" "signal" (eq .engine "crio")) -}}
{{- end -}}
{{- end }}

{{- define "cgpu.image" -}}
{{- with .Values.image -}}
{{- if .digest }}{{ printf "%s@%s" .repository .digest }}{{ else }}{{ printf "%s:%s" .repository (.tag | default $.Chart.AppVersion) }}{{ end -}}
{{- end -}}
{{- end }}

{{- /* Where the image's programs run, and what else a nodeSelector has: that comes first. */ -}}
{{- define "cgpu.nodeSelector" -}}
{{- $nodes := dict "kubernetes.io/os" "linux" -}}
{{- with (index . 0).Values.image.architecture }}{{ $_ := set $nodes "kubernetes.io/arch" . }}{{ end -}}
{{- merge (dict) (index . 1) $nodes | toYaml -}}
{{- end }}
