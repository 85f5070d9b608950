"""From one YAML to a build directory: the stages, their order, what is skipped, and the manifest."""
