{{/*
The operator's settings, as sandbox_operator.settings reads them: it refuses names that it does not know. Lists and
resources are JSON; an empty string means the operator's own default, an empty list means nothing.
*/}}
{{- define "sandbox-operator.env" -}}
- name: SANDBOX_OPERATOR_NAMESPACE
  valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
- name: SANDBOX_OPERATOR_IDENTITY
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
{{- $settings := list
  (list "LEASE" (include "sandbox-operator.fullname" .))
  (list "WATCH_NAMESPACES" (toJson .Values.watchNamespaces))
  (list "WORKERS" .Values.operator.workers)
  (list "PROBES_PORT" 8080)
  (list "LOG_LEVEL" .Values.operator.logLevel)
  (list "LOG_FORMAT" .Values.operator.logFormat)
  (list "WORKSPACE_IMAGE" (include "sandbox-operator.image" (list . .Values.images.workspace)))
  (list "WORKSPACE_IMAGE_PULL_POLICY" .Values.images.workspace.pullPolicy)
  (list "DEFAULT_IMAGE" .Values.sandboxes.image)
  (list "DEFAULT_EGRESS" .Values.sandboxes.egress)
  (list "DEFAULT_START_TIMEOUT" .Values.sandboxes.startTimeout)
  (list "DEFAULT_WORKSPACE_SIZE_LIMIT" (include "sandbox-operator.quantity" .Values.sandboxes.workspaceSizeLimit))
  (list "DEFAULT_RESOURCES" (include "sandbox-operator.resources" .Values.sandboxes.resources))
  (list "MATERIALIZE_RESOURCES" (include "sandbox-operator.resources" .Values.sandboxes.materialize.resources))
  (list "KEEPER_RESOURCES" (include "sandbox-operator.resources" .Values.sandboxes.keeper.resources))
  (list "IMAGE_PULL_SECRETS" (include "sandbox-operator.secretNames" .Values.sandboxes.imagePullSecrets))
  (list "PLATFORM_ASSIGNS_IDS" .Values.sandboxes.platformAssignsIds)
  (list "GIT_TIMEOUT" .Values.sandboxes.gitTimeout)
  (list "ALLOWED_RUNTIME_CLASSES" (toJson .Values.allowed.runtimeClasses))
  (list "ALLOWED_PRIORITY_CLASSES" (toJson .Values.allowed.priorityClasses))
  (list "INSECURE_GIT_HOSTS" (toJson .Values.allowed.insecureGitHosts))
  (list "NETWORK_POLICIES_ENFORCED" .Values.networkPolicies.enforced)
  (list "CLUSTER_CIDRS" (toJson .Values.networkPolicies.clusterCidrs))
  (list "DNS_CIDRS" (toJson .Values.networkPolicies.dnsCidrs)) }}
{{- range $settings }}
- name: SANDBOX_OPERATOR_{{ index . 0 }}
  value: {{ index . 1 | toString | quote }}
{{- end }}
{{- end }}

{{/* Whole numbers of YAML arrive as floats: 1073741824 must not become 1.073741824e+09. */}}
{{- define "sandbox-operator.quantity" -}}
{{- if kindIs "string" . }}{{ . }}{{ else }}{{ printf "%d" (int64 .) }}{{ end }}
{{- end }}

{{/* Resources as JSON with every quantity a string. */}}
{{- define "sandbox-operator.resources" -}}
{{- $result := dict }}
{{- range $part, $quantities := . }}
{{- $strings := dict }}
{{- range $name, $quantity := $quantities }}
{{- if not (kindIs "invalid" $quantity) }}
{{- $_ := set $strings $name (include "sandbox-operator.quantity" $quantity) }}
{{- end }}
{{- end }}
{{- $_ := set $result $part $strings }}
{{- end }}
{{- toJson $result }}
{{- end }}

{{- define "sandbox-operator.secretNames" -}}
{{- $names := list }}
{{- range . }}{{ $names = append $names .name }}{{ end }}
{{- toJson $names }}
{{- end }}
