{{- define "sandbox-operator.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" }}
{{- end }}

{{/* 50 characters leave room for the longest suffix of ours. */}}
{{- define "sandbox-operator.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" }}
{{- else }}
{{- $name := include "sandbox-operator.name" . }}
{{- if contains $name .Release.Name }}
{{- .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" }}
{{- end }}
{{- end }}
{{- end }}

{{- define "sandbox-operator.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "sandbox-operator.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- required "serviceAccount.name must be set where serviceAccount.create is false." .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{/* What never changes between versions: a Deployment's selector is immutable. */}}
{{- define "sandbox-operator.selectorLabels" -}}
app.kubernetes.io/name: {{ include "sandbox-operator.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "sandbox-operator.labels" -}}
{{- $own := dict
  "helm.sh/chart" (printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-")
  "app.kubernetes.io/version" (.Chart.AppVersion | trunc 63)
  "app.kubernetes.io/managed-by" .Release.Service
  "app.kubernetes.io/part-of" "sandbox-operator" }}
{{- toYaml (merge (include "sandbox-operator.selectorLabels" . | fromYaml) $own .Values.extraLabels) }}
{{- end }}

{{/* The full name of an image: {{ include "sandbox-operator.image" (list $ .Values.images.operator) }} */}}
{{- define "sandbox-operator.image" -}}
{{- $top := index . 0 }}{{ $image := index . 1 }}
{{- $image.repository }}:{{ default $top.Chart.AppVersion $image.tag }}{{ with $image.digest }}@{{ . }}{{ end }}
{{- end }}
