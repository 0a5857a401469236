"""Kubernetes sandboxes for the OpenAI Agents SDK."""
