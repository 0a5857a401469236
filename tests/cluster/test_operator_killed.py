"""The operator killed at any moment and started again comes to the same end."""

import random
import time

import pytest

from .conftest import SANDBOX, Namespace

OPERATOR = ("--namespace", "sandbox-system")
SELECTOR = "app.kubernetes.io/name=sandbox-operator,app.kubernetes.io/component=operator"


def kill_operator(namespace: Namespace) -> None:
    """End the operator's pod without a grace; its Deployment starts another."""
    namespace.kubectl(
        *OPERATOR, "delete", "pod", "-l", SELECTOR, "--grace-period=0", "--force", "--wait=false", check=False
    )


@pytest.fixture(autouse=True)
def operator_back_afterwards(namespace: Namespace):
    """Leave a running operator to the next test."""
    yield
    namespace.kubectl(*OPERATOR, "rollout", "status", "deployment", "-l", SELECTOR, "--timeout=60s")


def test_killed_at_random_moments_while_creating_and_deleting_it_doubles_and_orphans_nothing(
    namespace: Namespace,
) -> None:
    seed = random.randrange(1 << 32)
    moments = random.Random(seed)
    names = [f"box-{number}" for number in range(6)]
    for name in names:
        namespace.create(name, entries={"a": {"file": {"content": name}}})
        if moments.random() < 0.5:
            time.sleep(moments.uniform(0, 0.5))
            kill_operator(namespace)
    for name in names:
        namespace.wait_ready(name, 120)
    pods = [pod for pod in namespace.objects("pods") if "deletionTimestamp" not in pod["metadata"]]
    owners = sorted(pod["metadata"]["annotations"]["sandbox-operator.dev/sandbox"] for pod in pods)
    assert owners == names, f"seed {seed}"
    for name in names:
        assert namespace.sh(name, "cat a") == name
    for name in names:
        namespace.kubectl("delete", SANDBOX, name, "--wait=false")
        if moments.random() < 0.5:
            time.sleep(moments.uniform(0, 0.5))
            kill_operator(namespace)
    namespace.until(lambda: not namespace.objects(SANDBOX), f"the sandboxes to go (seed {seed})", 120)
    namespace.until(lambda: not namespace.children(), f"the children to go (seed {seed})", 60)


def test_a_restart_writes_nothing_to_a_sandbox_at_rest(namespace: Namespace) -> None:
    namespace.create("calm", entries={"a": {"file": {"content": "x"}}})
    namespace.wait_ready("calm")
    time.sleep(1)
    before = namespace.get(SANDBOX, "calm")
    kill_operator(namespace)
    namespace.kubectl(*OPERATOR, "rollout", "status", "deployment", "-l", SELECTOR, "--timeout=60s")
    time.sleep(3)
    assert namespace.get(SANDBOX, "calm") == before
