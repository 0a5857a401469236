"""The custom resources of sandbox-operator and the typed way to the API server that serves them."""
