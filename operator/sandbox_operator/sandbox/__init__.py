"""The Sandbox controller: observe, plan (pure), act, write status once."""
