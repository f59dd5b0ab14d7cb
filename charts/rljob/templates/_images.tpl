{{/* The reference of an image: (dict "root" $ "image" .Values.images.worker). A digest goes before a tag. */}}
{{- define "rljob.image" -}}
{{- $images := .root.Values.images }}
{{- $registry := coalesce .root.Values.global.imageRegistry .image.registry $images.registry }}
{{- $version := printf ":%s" (coalesce .image.tag $images.tag .root.Chart.AppVersion) }}
{{- if .image.digest }}{{ $version = printf "@%s" .image.digest }}{{ end }}
{{- if $registry }}{{ trimSuffix "/" $registry }}/{{ end }}{{ .image.repository }}{{ $version }}
{{- end }}

{{/* Names of the Secrets with which images are pulled, as a JSON list. */}}
{{- define "rljob.pullSecrets" -}}
{{- concat .Values.global.imagePullSecrets .Values.images.pullSecrets | uniq | toJson }}
{{- end }}
