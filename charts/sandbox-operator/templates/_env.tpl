{{/* The operator's settings, as sandbox_operator.settings reads them. */}}
{{- define "sandbox-operator.env" -}}
- name: SANDBOX_OPERATOR_NAMESPACE
  valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
{{- end }}
