"""Options of the SDK's side and a mapped manifest as the spec of a Sandbox."""

from typing import Any

from pydantic import ValidationError
from sandbox_api.v1alpha1 import Manifest, SandboxSpec
from sandbox_api.v1alpha1.validation import parse_problems, problems

from .errors import configuration_error
from .options import KubernetesSandboxClientOptions


def sandbox_spec(options: KubernetesSandboxClientOptions, manifest: Manifest) -> SandboxSpec:
    """The spec, checked by the rules that the API server will apply.

    Raises:
        ConfigurationError: It would be refused; the message names the field.
    """
    fields: dict[str, Any] = {}
    if options.image is not None:
        fields["image"] = options.image
    if manifest.model_fields_set:
        fields["manifest"] = manifest
    if options.resources is not None:
        fields["resources"] = options.resources
    if options.egress is not None:
        fields["network"] = {"egress": options.egress}
    if options.runtime_class is not None:
        fields["security"] = {"runtimeClassName": options.runtime_class}
    lifecycle = {"startTimeout": f"{max(1, round(options.start_timeout))}s"}
    if options.ttl is not None:
        lifecycle["ttl"] = options.ttl
    fields["lifecycle"] = lifecycle
    pod: dict[str, Any] = {}
    if options.node_selector:
        pod["nodeSelector"] = options.node_selector
    if options.tolerations:
        pod["tolerations"] = list(options.tolerations)
    if options.image_pull_secrets:
        pod["imagePullSecrets"] = [{"name": name} for name in options.image_pull_secrets]
    if pod:
        fields["pod"] = pod
    try:
        spec = SandboxSpec.model_validate(fields)
    except ValidationError as error:
        raise configuration_error(f"the options make no Sandbox: {parse_problems(error)[0]}") from None
    if found := problems(spec):
        raise configuration_error(f"this makes no Sandbox: {found[0]}", context={"problems": found[:20]})
    return spec
