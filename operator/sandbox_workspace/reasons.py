"""Why a workspace could not be filled: the part of the API's enumeration of reasons that this package uses.

The strings are written again here because the package imports nothing but the standard library; a test
compares them with `sandbox_api.v1alpha1.Reason`.
"""

from enum import StrEnum


class Reason(StrEnum):
    """Reasons that the termination message can carry."""

    INVALID_SPEC = "InvalidSpec"
    MATERIALIZATION_FAILED = "MaterializationFailed"
    SOURCE_NOT_FOUND = "SourceNotFound"
    PATH_CONFLICT = "PathConflict"
    WORKSPACE_FULL = "WorkspaceFull"
    GIT_HOST_UNREACHABLE = "GitHostUnreachable"
    GIT_AUTHENTICATION_FAILED = "GitAuthenticationFailed"
    GIT_REPOSITORY_NOT_FOUND = "GitRepositoryNotFound"
    GIT_REF_NOT_FOUND = "GitRefNotFound"
    GIT_SUBPATH_NOT_FOUND = "GitSubpathNotFound"
    GIT_REFUSED = "GitRefused"
    GIT_TIMEOUT = "GitTimeout"
    GIT_FAILED = "GitFailed"
