"""What a level-based controller needs and Kubernetes does not give: a store, a queue, a loop, a lease."""
