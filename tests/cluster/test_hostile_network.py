"""Two sandboxes against each other, and against the node and what else is around, by ways other than an address."""

from .conftest import Namespace

SERVER = ["python3", "-m", "http.server", "8080", "--bind", "::"]
#: The link-local addresses of the interface: its own, and that of its neighbour across the bridge if it answers.
OWN = """
for line in open("/proc/net/if_inet6"):
    fields = line.split()
    if fields[5] != "lo":
        print(":".join(fields[0][i : i + 4] for i in range(0, 32, 4)) + "%" + fields[5])
"""
#: Prints what of HOST,PORT… can be reached over TCP.
DIAL = """
import concurrent.futures, socket, sys
def reach(target):
    host, port = target.rsplit(",", 1)
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0]
        attempt = socket.socket(family, kind)
        attempt.settimeout(3)
        attempt.connect(address)
        return target
    except OSError:
        return ""
with concurrent.futures.ThreadPoolExecutor(32) as pool:
    print(*pool.map(reach, sys.argv[1:]))
"""
#: Sends a question to the server of names; prints whether an answer came.
ASK = """
import socket
server = next(line.split()[1] for line in open("/etc/resolv.conf") if line.startswith("nameserver"))
ask = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
ask.settimeout(2)
ask.sendto(b"\\x12\\x34\\x01\\0\\0\\1\\0\\0\\0\\0\\0\\0\\7example\\3com\\0\\0\\1\\0\\1", (server, 53))
try:
    ask.recv(512)
    print("answered")
except OSError:
    print("silent")
"""
#: Prints the ways to make packets of one's own that the kernel grants.
FORGE = """
import socket
for family, kind in ((socket.AF_PACKET, socket.SOCK_RAW), (socket.AF_INET, socket.SOCK_RAW)):
    try:
        socket.socket(family, kind)
        print(family, kind)
    except OSError:
        pass
"""


def python(namespace: Namespace, name: str, code: str, *arguments: str) -> list[str]:
    return namespace.kubectl(
        "exec", namespace.pod_name(name), "-c", "workspace", "--", "python3", "-c", code, *arguments
    ).split()


def test_a_sandbox_reaches_neither_another_nor_the_node_by_ways_around_its_address(
    namespace: Namespace,
) -> None:
    for egress in ("None", "Cluster", "Internet"):
        namespace.create(egress.lower(), command=SERVER, network={"egress": egress})
    names = ("none", "cluster", "internet")
    for name in names:
        namespace.wait_ready(name)
    pods = {name: namespace.get("pod", namespace.pod_name(name)) or {} for name in names}
    # The interface's name is that of the one who dials; pods have the same one.
    local = {name: python(namespace, name, OWN) for name in names}
    for name in names:
        own = [f"{address},8080" for address in local[name]]
        assert sorted(python(namespace, name, DIAL, *own)) == sorted(own), (
            "a server that does not answer proves nothing"
        )
        around = [f"{address},8080" for other in names if other != name for address in local[other]]
        around += [f"{pods[other]['status']['podIP']},8080" for other in names if other != name]
        node = pods[name]["status"]["hostIP"]
        around += [
            f"{node},10250",
            f"{node},10255",
            f"{node},10256",
            "169.254.169.254,80",
            "168.63.129.16,80",
        ]
        around += ["kubernetes.default.svc,443"]
        assert python(namespace, name, DIAL, *around) == []
        assert python(namespace, name, FORGE) == []
    assert python(namespace, "none", ASK) == ["silent"]
    assert python(namespace, "cluster", ASK) == ["answered"]
