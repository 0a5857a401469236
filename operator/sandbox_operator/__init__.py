"""A kopf-hosted operator that turns Sandbox resources into pods."""
