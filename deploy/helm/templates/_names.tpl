{{- /* The stable DNS name of pod INDEX of a role: list CONTEXT ROLE INDEX. */ -}}
{{- define "saturnmq.host" -}}
{{- $root := index . 0 -}}
{{- printf "%s-%s-%v.%s-%s.%s.svc.%s" $root.Release.Name (index . 1) (index . 2) $root.Release.Name (index . 1) $root.Release.Namespace $root.Values.clusterDomain -}}
{{- end -}}

{{- define "saturnmq.image" -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}

{{- /* Labels of a role: list CONTEXT ROLE. */ -}}
{{- define "saturnmq.labels" -}}
app.kubernetes.io/name: saturnmq
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- /* What both roles' pods have in common: list CONTEXT ROLE. */ -}}
{{- define "saturnmq.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false  # variables of the services of a release `saturnmq` would look like configuration keys
terminationGracePeriodSeconds: 60
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "saturnmq.labels" . | nindent 8 }}
{{- end -}}

{{- define "saturnmq.container" -}}
image: {{ include "saturnmq.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end -}}
