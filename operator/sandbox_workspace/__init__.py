"""What runs inside the containers of a sandbox pod that are ours. Starts fast, imports little."""
