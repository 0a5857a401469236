"""What runs inside the containers of a sandbox pod that are ours: materialize. Starts fast, imports little."""
