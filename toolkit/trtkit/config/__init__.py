"""What the user may ask for: the schema of the build YAML and the one way to read it."""
