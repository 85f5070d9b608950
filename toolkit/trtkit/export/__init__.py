"""The same YAML for other runtimes: a vllm serve command, and a transformers script. Runs neither."""
