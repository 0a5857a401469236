"""The way into a sandbox: one long-lived stream to the agent, and the agent's operations on it.

Nothing here knows the SDK. What the agent says is untrusted input: lengths and counts are bounded before
anything is stored. The wire is described in docs/agent-protocol.md.
"""
