"""How fast it is, as ratios against baselines of the same run. See docs/benchmarks.md."""
